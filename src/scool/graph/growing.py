"""The state of some clients as the state of more of them, or of fewer."""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from torch import Tensor

from scool.graph.edges import Edges

S = TypeVar("S")


def laid_over(fresh: S, state: S) -> S:
    """A state of K clients over the leading block of one with another number of clients: nested
    NamedTuples and mappings of tensors and edges.

    In every dimension in which the two differ, clients beyond those of `state` are as in `fresh`,
    and clients beyond those of `fresh` are dropped. What has the same shape in both is as in
    `state`.

    >>> import torch
    >>> laid_over(torch.zeros(3), torch.ones(2)).tolist()
    [1.0, 1.0, 0.0]
    >>> laid_over(torch.zeros(1), torch.ones(2)).tolist()
    [1.0]

    Raises:
        ValueError: the two are not of one kind.
    """
    return _over(fresh, state)


def _over(fresh: Any, state: Any) -> Any:
    if isinstance(state, Tensor):
        return _tensor_over(fresh, state)
    if isinstance(state, Edges):
        return _edges_over(fresh, state)
    if isinstance(state, Mapping):
        parts = cast("Mapping[str, Any]", state)
        return {name: _over(fresh[name], t) if name in fresh else t for name, t in parts.items()}
    fields = zip(fresh, state, strict=True)
    return type(state)(*(_over(one, two) for one, two in fields))


def _tensor_over(fresh: Tensor, state: Tensor) -> Tensor:
    if fresh.shape == state.shape:
        return state
    if fresh.dim() != state.dim():
        raise ValueError(f"{tuple(state.shape)} does not fit over {tuple(fresh.shape)}")
    block = tuple(slice(min(a, b)) for a, b in zip(fresh.shape, state.shape, strict=True))
    found = fresh.to(state, copy=True)
    found[block] = state[block]
    return found


def _edges_over(fresh: Edges, state: Edges) -> Edges:
    """Where other pairs hold another value than those of `fresh`, the state decides alone."""
    before, now = len(state), len(fresh)
    if before == now:
        return state
    here = state.take((state.i < now) & (state.j < now))
    here = Edges(now, here.i, here.j, here.values, here.fill)
    if str(fresh.fill) != str(state.fill):  # NaN is not equal to itself
        return here
    if fresh.values.shape[1:] != state.values.shape[1:]:
        raise ValueError("pairs with other numbers")
    return here.updated(fresh.take((fresh.i >= before) | (fresh.j >= before)))
