"""SCooL-attention as the authors' program computes it (compat="released")."""

import torch
from torch import Tensor

from scool.graph.edges import Edges
from scool.priors.attention_updates import BLOCK
from scool.priors.base import Measured
from scool.types import Params

SMALL = 1e-10  # inside the logarithm of the encoder's loss


def target_rows(scores: Measured) -> Tensor:
    """(E,) o_i. = softmax_j(-L_ij / T) over the measured pairs of row i."""
    return scores.edges.on(scores.ratio).row_softmax().exp()


def released_scores(scores: Measured, temperature: float) -> Measured:
    """The sign error of sparse rows: -L is divided by its own sum before the exponential, which
    leaves L_ij / (T sum_m L_im). Dense rows are right."""
    edges = scores.edges
    total = edges.row_sums(scores.ratio)[edges.i]
    share = scores.ratio / torch.where(total == 0, 1.0, total) / temperature
    seen_by_anybody = int((edges.j.bincount(minlength=len(edges)) > 0).sum())  # not in quarantine
    sparse = edges.degrees < seen_by_anybody
    return scores._replace(ratio=torch.where(sparse[edges.i], share, scores.ratio))


def per_client_gradient(
    phi: Params,
    u: Tensor,
    all_u: Tensor,
    held: Tensor,
    edges: Edges,
    target: Tensor,
    log_p: Tensor,
) -> Params:
    """(K, *shape) for each client the gradient of sum_j o_ij log(p_ij + 1e-10) in its own copy of
    phi. Copies are equal when the round begins; f_ij reaches phi through u_i and through u_j."""
    p = log_p.exp()
    share = target * p / (p + SMALL)
    residual = edges.on((share - p * edges.row_sums(share)[edges.i]).to(u)).dense()  # d loss / d f
    parts: list[tuple[Tensor, ...]] = []
    held = held.to(u.device)
    step = max(1, BLOCK // all_u.numel())
    for start in range(0, len(all_u), step):
        some = slice(start, start + step)
        c = residual[some, :, None] * all_u[some, None]  # (some, K, D): what u_j receives
        c.diagonal(start).add_((residual[some] @ all_u).T)
        parts.append(
            torch.autograd.grad(
                u, list(phi.values()), c[:, held], retain_graph=True, is_grads_batched=True
            )
        )
    return dict(zip(phi, map(torch.cat, zip(*parts, strict=True)), strict=True))
