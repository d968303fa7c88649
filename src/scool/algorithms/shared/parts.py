"""A model in two parts: what clients share, and what stays personal."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from scool.errors import ConfigError, unknown
from scool.types import Params, Tree


class Parts(NamedTuple):
    """Names of tensors."""

    shared: frozenset[str]
    personal: frozenset[str]


def split_names(names: Iterable[str], personal: str, norms: Collection[str] = ()) -> Parts:
    """Which tensors of a model are personal.

    Args:
        names: of the model's parameters, in order.
        personal: `head` for the last layer, `norm` for all layers that normalise, or layers and
            tensors by name, with commas between; empty for none.
        norms: the tensors of layers that normalise (`Engine.norms`).

    >>> sorted(split_names(["0.weight", "0.bias", "2.weight", "2.bias"], "head").personal)
    ['2.bias', '2.weight']

    Raises:
        ConfigError: the model lacks such a layer, or nothing would be shared.
    """
    names = list(names)
    chosen: set[str] = set()
    for part in filter(None, (part.strip() for part in personal.split(","))):
        prefix = names[-1].rpartition(".")[0] if part == "head" else part
        found = {name for name in names if name == prefix or name.startswith(f"{prefix}.")}
        if part == "head" and not prefix:
            found = {names[-1]}
        if part == "norm":
            found |= {name for name in names if name in norms}
        if not found:
            special = {"head", "norm"} if norms else {"head"}
            layers = sorted({name.rpartition(".")[0] or name for name in names} | special)
            unknown("layer of the model in personal:", part, layers)
        chosen |= found
    if len(chosen) == len(names) and names:
        raise ConfigError(
            f"personal = {personal!r} is the whole model: nothing would be shared. Name fewer "
            "layers, or use the method `local`"
        )
    return Parts(frozenset(names) - chosen, frozenset(chosen))


def only(tree: Tree | Params, names: Collection[str]) -> Tree:
    """The tensors of those names, in the tree's order."""
    return {name: t for name, t in tree.items() if name in names}
