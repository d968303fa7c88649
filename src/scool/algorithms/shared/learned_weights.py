"""Mixing weights that are learned on validation data: what L2C and meta-L2C share."""

import torch
from torch import Tensor

from scool.contracts import Engine
from scool.errors import require
from scool.graph.mixing import keep_top, num_kept
from scool.priors import adam
from scool.priors.base import masked_log_softmax
from scool.types import Params, Tree

BETAS = (0.9, 0.999)  # Adam's usual decay rates


def check_learning(meta_lr: float, meta_decay: float, fraction: float) -> None:
    """Refuse impossible options of the learning of weights."""
    require(meta_lr > 0, "meta_lr", meta_lr, "give a positive learning rate")
    require(meta_decay >= 0, "meta_decay", meta_decay, "give 0 or more")
    require(0 < fraction <= 1, "fraction", fraction, "give a fraction in (0, 1]")


def softmax_rows(scores: Tensor, neighbours: Tensor, active: Tensor) -> Tensor:
    """(K, K) softmax of each row over its neighbours that are active; the others stay alone."""
    columns = neighbours & active[:, None] & active
    w = masked_log_softmax(scores.double().cpu(), columns).exp()
    return torch.where(columns.any(dim=1, keepdim=True), w, torch.eye(len(w), dtype=w.dtype))


def score_gradient(engine: Engine, w: Tensor, mixed: Tree, parts: Tree) -> Tensor:
    r"""(K, K) $\partial L^{val}_i(\theta_i(w)) / \partial s_{ij}$, $w_i = \mathrm{softmax}(s_i)$.

    $\theta_i(w) = b_i + \sum_j w_{ij} x_j$ gives $\partial L / \partial w_{ij} = \langle \nabla
    L^{val}_i(\theta_i(w)), x_j \rangle$, and the softmax $w_{ij} (\partial L / \partial w_{ij} -
    \sum_m w_{im} \partial L / \partial w_{im})$.

    Args:
        mixed: $\theta_i(w)$.
        parts: what was mixed, x: updates or models.
    """
    slope, loss = engine.gradient(mixed, "val")
    along = engine.inner(slope, parts)
    along = along.where((w > 0) & along.isfinite() & loss.isfinite()[:, None], 0.0)
    return w * (along - (w * along).sum(dim=1, keepdim=True))


def descend(
    values: Params, slope: Params, moments: adam.Moments, lr: float, decay: float
) -> tuple[Params, adam.Moments]:
    """One step of Adam, the decay in the gradient."""
    return adam.descend(values, slope, moments, lr, BETAS, decay, decoupled=False)


def best_neighbours(w: Tensor, fraction: float, neighbours: Tensor) -> Tensor:
    """(K, K) bool: the client itself, and the peers with the largest weights."""
    return keep_top(w, num_kept(len(w), fraction), neighbours)
