"""Weighted sums of the model of this peer and those of others."""

from collections.abc import Mapping

import torch
from torch import Tensor

from scool.engine.common import mixer
from scool.engine.ledger import PairList
from scool.graph.edges import Edges
from scool.types import Params, Tree


def rows_of(
    name: str, own: Tensor, place: int, clients: int, models: Mapping[int, Params]
) -> Tensor:
    """(K, D) a tensor of all clients, 0 where it is not here."""
    rows = own.new_zeros(clients, own[0].numel())
    rows[place] = own[0].flatten()
    for j, model in models.items():
        rows[j] = model[name].flatten().to(rows)
    return rows


def exact_sum(row: Edges, place: int, tree: Tree, models: Mapping[int, Params]) -> Tree:
    """The sum as the product of a K x K matrix whose other rows are 0: a product of one row may add
    in another order, and so give other bits."""
    k = len(row)
    first = next(iter(tree.values()))
    mix = mixer(PairList(row.i, row.j), row.values, (k, k), first.device, first.dtype)
    return {
        name: mix(rows_of(name, t, place, k, models))[[place]].view_as(t)
        for name, t in tree.items()
    }


def plain_sum(row: Edges, tree: Tree, models: Mapping[int, Params]) -> Tree:
    """One model after the other."""
    weights = row.values.tolist()
    out: Tree = {}
    for name, t in tree.items():
        out[name] = torch.zeros_like(t)
        for j, weight in zip(row.j.tolist(), weights, strict=True):
            out[name].add_(models[j][name].to(t) if j in models else t, alpha=weight)
    return out
