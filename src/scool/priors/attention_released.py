"""SCooL-attention as the authors' program computes it (compat="released")."""

import torch
from torch import Tensor

from scool.priors.attention_updates import BLOCK, Scores
from scool.priors.safe_math import masked_log_softmax
from scool.types import Params

SMALL = 1e-10  # inside the logarithm of the encoder's loss


def target_rows(scores: Scores) -> Tensor:
    """o_i. = softmax_j(-L_ij / T) over the measured columns."""
    return masked_log_softmax(scores.ratio, scores.columns).exp()


def released_scores(scores: Scores, temperature: float) -> Scores:
    """The sign error of sparse rows: -L is divided by its own sum before the exponential, which
    leaves L_ij / (T sum_m L_im). Dense rows are right."""
    total = scores.ratio.sum(1, keepdim=True)
    share = scores.ratio / torch.where(total == 0, 1.0, total) / temperature
    measured = scores.columns.any(0)  # a column that nobody sees is a client in quarantine
    sparse = (measured & ~scores.columns).any(1, keepdim=True)
    return scores._replace(ratio=torch.where(sparse, share, scores.ratio))


def per_client_gradient(
    phi: Params, u: Tensor, all_u: Tensor, held: Tensor, target: Tensor, log_p: Tensor
) -> Params:
    """(K, *shape) for each client the gradient of sum_j o_ij log(p_ij + 1e-10) in its own copy of
    phi. Copies are equal when the round begins; f_ij reaches phi through u_i and through u_j."""
    p = log_p.exp()
    share = target * p / (p + SMALL)
    residual = (share - p * share.sum(1, keepdim=True)).to(u)  # d loss / d f
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
