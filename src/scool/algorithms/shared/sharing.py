"""What many methods do: choose participants, split a model into shared and personal tensors,
average."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from scool.contracts import Engine
from scool.errors import ConfigError, require, unknown
from scool.graph.edges import Edges, Matrix
from scool.models.layers import is_statistic
from scool.randomness import generator
from scool.types import Params, Tree


def check_participation(participation: float) -> None:
    """Refuse a share that leaves no client."""
    good = 0 < participation <= 1
    require(good, "participation", participation, "give a fraction in (0, 1]; 1 is everyone")


def participants(engine: Engine, participation: float, round: int) -> Tensor:
    """(K,) bool: a random set of the clients, one at least, a function of the seed and round."""
    count = max(1, int(engine.num_clients * participation + 1e-9))
    rng = generator(engine.seed, "participants", round)
    order = torch.randperm(engine.num_clients, generator=rng)
    chosen = torch.zeros(engine.num_clients, dtype=torch.bool)
    chosen[order[:count]] = True
    return chosen


def shares(engine: Engine, chosen: Tensor) -> Tensor | None:
    r"""(K,) $n_i / \sum_A n$ of the participants, 0 of the others; None where all participants
    are in quarantine."""
    share = engine.sizes.double() * (chosen & engine.active)
    return share / share.sum() if bool(share.any()) else None


class Parts(NamedTuple):
    """Names of tensors."""

    shared: frozenset[str]
    personal: frozenset[str]


def split_names(names: Iterable[str], personal: str, norms: Collection[str] = ()) -> Parts:
    """Which tensors of a model are personal.

    Args:
        names: of the model's parameters, in order.
        personal: `head` for the last layer, `norm` for all layers that normalise, or names of
            layers and tensors, separated by commas; empty for none.
        norms: the tensors of layers that normalise (`Engine.norms`).

    >>> sorted(split_names(["0.weight", "0.bias", "2.weight", "2.bias"], "head").personal)
    ['2.bias', '2.weight']

    Raises:
        ConfigError: the model lacks such a layer, or nothing would be shared.
    """
    names = list(names)
    chosen = named_tensors(names, personal, norms)
    if len(chosen) == len(names) and names:
        raise ConfigError(
            f"personal = {personal!r} is the whole model: nothing would be shared. Name fewer "
            "layers, or use the method `local`"
        )
    return Parts(frozenset(names) - chosen, chosen)


def named_tensors(
    names: Sequence[str], wanted: str, norms: Collection[str] = (), field: str = "personal"
) -> frozenset[str]:
    """The tensors of the layers in `wanted`, as `split_names` describes it; the option is called
    `field`.

    Raises:
        ConfigError: the model lacks such a layer.
    """
    chosen: set[str] = set()
    for part in filter(None, (part.strip() for part in wanted.split(","))):
        prefix = names[-1].rpartition(".")[0] if part == "head" else part
        found = {name for name in names if name == prefix or name.startswith(f"{prefix}.")}
        if part == "head" and not prefix:
            found = {names[-1]}
        if part == "norm":
            found |= {name for name in names if name in norms}
        if not found:
            special = {"head", "norm"} if norms else {"head"}
            layers = sorted({name.rpartition(".")[0] or name for name in names} | special)
            unknown(f"layer of the model in {field}:", part, layers)
        chosen |= found
    return frozenset(chosen)


def only(tree: Tree | Params, names: Collection[str]) -> Tree:
    """The tensors of those names, in the tree's order."""
    return {name: t for name, t in tree.items() if name in names}


def mix_updates(engine: Engine, weights: Matrix, theta: Tree, half: Tree) -> Tree:
    r"""$\theta_i^{t+1} = \theta_i^t + \sum_j \hat w_{ij} (\theta_j^{t+1/2} - \theta_j^t)$.

    Running statistics are not moved by gradients: they are averaged like models. A client whose row
    is the unit vector keeps its own result to the bit, so that a graph without edges is local SGD
    exactly and not up to rounding.
    """
    sent = {n: half[n].clone() if is_statistic(n) else half[n] - theta[n] for n in theta}
    mixed = engine.mix(weights, sent, overwrite=True)
    graph = Edges.of(weights).nonzero_pairs()
    total = graph.row_sums()[engine.owned.cpu()]
    alone = (graph.loop_values() == 1) & (graph.degrees == 1)
    rows = alone[engine.owned.to(alone.device)].nonzero()[:, 0]
    for n, update in mixed.items():  # in place: the stack of all models is large
        if is_statistic(n):
            share = per_client(total, update)
            update.copy_(torch.where(share > 0, update / share, theta[n]))
        else:
            update.add_(theta[n])
        own = rows.to(update.device)
        update[own] = half[n][own]
    return mixed


def mix_and_move(engine: Engine, weights: Matrix, theta: Tree, half: Tree) -> Tree:
    r"""$\theta_i^{t+1} = \sum_j w_{ij} \theta_j^t + \theta_i^{t+1/2} - \theta_i^t$; of running
    statistics the average of those after local learning."""
    sent = {n: half[n] if is_statistic(n) else t for n, t in theta.items()}
    mixed = engine.mix(weights, sent)
    for n, t in theta.items():
        if not is_statistic(n):
            mixed[n] = mixed[n] + half[n] - t
    return mixed


def per_client(value: Tensor, like: Tensor) -> Tensor:
    """(n,) numbers, one per client, shaped to multiply a stacked tensor (n, ...)."""
    return value.to(like).view(-1, *[1] * (like.dim() - 1))


def choose(engine: Engine, clients: Tensor, then: Tree, otherwise: Tree) -> Tree:
    """`then` for the clients in (K,) bool, `otherwise` for the rest."""
    mine = clients[engine.owned.cpu()]
    return {n: torch.where(per_client(mine, t).bool(), t, otherwise[n]) for n, t in then.items()}


def server_average(
    engine: Engine, chosen: Tensor, trained: Tree, before: Tree
) -> tuple[Tree, Tensor]:
    r"""$x = \sum_{i \in A} \frac{n_i}{\sum_A n} \theta_i$ for everyone, and those weights (K, K).

    Where all of A are in quarantine nothing is sent: `before` as it is, and the unit matrix.

    Args:
        chosen: (K,) bool, the participants A.
        trained: the tensors that are averaged.
        before: what stays where there is nobody to average.
    """
    share = shares(engine, chosen)
    if share is None:
        return before, torch.eye(engine.num_clients, dtype=torch.float64)
    graph = share.expand(engine.num_clients, -1)
    return engine.mix(graph, trained, via="server"), graph
