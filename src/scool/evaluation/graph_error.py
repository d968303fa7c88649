"""How far a graph is from the true one, and which groups it shows."""

import warnings

import numpy as np
import torch
from torch import Tensor

from scool.graph.normalise import normalise_rows


def graph_l1(w: Tensor, truth: Tensor, among: Tensor | None = None) -> float:
    r"""$\frac1K \sum_i \sum_j |\hat w_{ij} - w^*_{ij}|$, between 0 and 2; of the clients i
    in `among` (K,) bool where that is given.

    >>> graph_l1(torch.eye(2), torch.full((2, 2), 0.5))
    1.0
    """
    off = (normalise_rows(w.double()) - normalise_rows(truth.double())).abs().sum(1)
    return float((off if among is None else off[among]).mean())


def communities(w: Tensor, count: int) -> Tensor:
    """(K,) the `count` groups that a graph shows: spectral clustering of the mutual weights.

    A graph without edges has K groups of one; a graph without contrast has one group of K.
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    k = len(w)
    affinity = normalise_rows(w.double().cpu())
    affinity = (affinity + affinity.T) / 2
    affinity.fill_diagonal_(0)
    if not bool((affinity > 1e-12).any()):
        return torch.arange(k)
    off = affinity[~torch.eye(k, dtype=torch.bool)]
    if count < 2 or float(off.max() - off.min()) < 1e-9:
        return torch.zeros(k, dtype=torch.int64)
    scale = affinity.sum(1).clamp(min=1e-12).rsqrt()
    _, vectors = torch.linalg.eigh(scale[:, None] * affinity * scale)
    embedding = vectors[:, -min(count, k) :]
    embedding = embedding / embedding.norm(dim=1, keepdim=True).clamp(min=1e-12)
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # fewer distinct rows than groups is an answer, not a fault
        labels = KMeans(min(count, k), n_init="auto", random_state=0).fit_predict(embedding.numpy())
    return torch.from_numpy(labels.astype(np.int64))


def adjusted_rand(a: Tensor, b: Tensor) -> float:
    """Agreement of two groupings: 1 for the same up to names, about 0 for unrelated ones.

    >>> adjusted_rand(torch.tensor([0, 0, 1, 1]), torch.tensor([5, 5, 3, 3]))
    1.0
    """
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(a.cpu().numpy(), b.cpu().numpy()))
