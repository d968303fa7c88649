"""Fixed mixing matrices for D-PSGD: symmetric and doubly stochastic, who talks to whom."""

from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from scool.errors import ConfigError, require, unknown
from scool.randomness import generator

Topology: TypeAlias = Literal[
    "ring", "bipartite", "group-ring", "generalised-bipartite", "complete", "identity"
]
TOPOLOGIES: tuple[str, ...] = get_args(Topology)


def mixing_matrix(
    name: str, num_clients: int, *, degree: int = 10, shuffle: bool = False, seed: int = 0
) -> Tensor:
    """The (K, K) float64 weights of a topology by name.

    Small federations never fail: where a graph has no room it becomes the complete one (`ring` and
    `bipartite` with K < 3, `group-ring` with degree >= K - 1), and K = 1 is always [[1]].

    Args:
        name: one of `TOPOLOGIES`.
        num_clients: K.
        degree: neighbours of a client, for `group-ring` (odd numbers round down to an even one,
            never below 2) and `generalised-bipartite` (at most half the clients).
        shuffle: give the places in the graph to the clients at random. Without it neighbours on a
            ring are neighbours in the list of clients, who may well have a task in common.
        seed: for `shuffle` and for `generalised-bipartite`, the only random one.

    >>> mixing_matrix("ring", 4)[0].mul(3).round().tolist()
    [1.0, 1.0, 0.0, 1.0]
    """
    if name not in TOPOLOGIES:
        unknown("topology", name, TOPOLOGIES)
    require(num_clients >= 1, "num_clients", num_clients, "a federation has at least one client")
    require(degree >= 1, "degree", degree, "give at least one neighbour")
    w = _in_order(name, num_clients, degree, seed)
    if shuffle:
        place = torch.randperm(num_clients, generator=generator(seed, "places", num_clients))
        w = w[place][:, place]
    return w


class HasTopology(Protocol):
    """Options of those who mix over a fixed graph: see `mixing_matrix`."""

    @property
    def topology(self) -> str: ...
    @property
    def degree(self) -> int: ...
    @property
    def shuffle(self) -> bool: ...


def check_topology(options: HasTopology) -> None:
    """Refuse a graph that nobody knows, before anything is computed."""
    if options.topology not in TOPOLOGIES:
        unknown("topology", options.topology, TOPOLOGIES)
    require(options.degree >= 1, "degree", options.degree, "give at least one neighbour")


def matrix_of(options: HasTopology, num_clients: int, seed: int) -> Tensor:
    """(K, K) the weights that such options ask for."""
    degree, shuffle = options.degree, options.shuffle
    return mixing_matrix(options.topology, num_clients, degree=degree, shuffle=shuffle, seed=seed)


def _in_order(name: str, num_clients: int, degree: int, seed: int) -> Tensor:
    if name == "identity":
        return torch.eye(num_clients, dtype=torch.float64)
    if name == "complete" or num_clients < 3:
        return torch.full((num_clients, num_clients), 1 / num_clients, dtype=torch.float64)
    if name == "ring":
        return _band(num_clients, reach=1)
    if name == "group-ring":
        return _band(num_clients, reach=max(1, degree // 2))
    if name == "bipartite":
        return _two_hubs(num_clients)
    return _two_halves(num_clients, degree, seed)


def _band(num_clients: int, reach: int) -> Tensor:
    """Uniform weights on the clients at most `reach` steps away on a circle, self included."""
    position = torch.arange(num_clients)
    steps = (position[:, None] - position[None, :]).abs()
    near = torch.minimum(steps, num_clients - steps) <= reach
    return near.double() / near.sum(dim=1, keepdim=True)


def _two_hubs(num_clients: int) -> Tensor:
    """The bipartite graph of CGA: every leaf is joined to both hubs (the last two clients).

    Weights are cut to two digits as in CGA; beyond 101 clients that would give 0 and the graph
    would fall apart, so there the exact 1 / (K - 1) is used.
    """
    leaves = num_clients - 2
    share = (100 // (num_clients - 1)) / 100 or 1 / (num_clients - 1)
    w = torch.zeros(num_clients, num_clients, dtype=torch.float64)
    w[:leaves, leaves:] = share
    w[leaves:, :leaves] = share
    return _fill_diagonal(w)


def _two_halves(num_clients: int, degree: int, seed: int) -> Tensor:
    """A random bipartite graph of two halves, `degree` edge-disjoint random perfect matchings.

    The matchings are shifts of one random matching. Shifts 0 and 1 are always among them: together
    they are one cycle through all clients, so the graph is connected. With an odd number of
    clients the last one is joined to `degree` clients of the other half and Metropolis weights
    `1 / (1 + max(degree_i, degree_j))` keep the matrix doubly stochastic.
    """
    half = num_clients // 2
    degree = min(degree, half)
    require(
        degree > 1 or half == 1,
        "degree",
        degree,
        "one neighbour each leaves the clients in separate pairs; give 2 or more",
    )
    rng = generator(seed, "topology", num_clients, degree)
    order = torch.randperm(num_clients, generator=rng)
    left, right = order[:half], order[half:]
    extra = torch.randperm(max(half - 2, 0), generator=rng)[: max(degree - 2, 0)] + 2
    shifts = torch.cat([torch.arange(min(2, degree)), extra])
    partner = (torch.arange(half)[:, None] + shifts[None, :]) % half  # (half, degree)
    joined = torch.zeros(num_clients, num_clients, dtype=torch.bool)
    joined[left[:, None], right[partner]] = True
    if num_clients % 2:
        joined[left[torch.randperm(half, generator=rng)[:degree]], right[-1]] = True
    joined |= joined.T.clone()
    return _metropolis(joined)


def _metropolis(joined: Tensor) -> Tensor:
    degree = joined.sum(dim=1)
    return _fill_diagonal(joined / (1.0 + torch.maximum(degree[:, None], degree[None, :])).double())


def _fill_diagonal(w: Tensor) -> Tensor:
    """Give each client the weight that its row lacks."""
    return w + torch.diag(1 - w.sum(dim=1))


def is_connected(w: Tensor) -> bool:
    """Whether every client can reach every other along nonzero weights, in either direction.

    >>> is_connected(torch.eye(2)), is_connected(torch.ones(2, 2))
    (False, True)
    """
    linked = (w != 0) | (w.T != 0)
    reached = torch.zeros(len(w), dtype=torch.bool, device=w.device)
    reached[0] = True
    frontier = reached
    while frontier.any():
        frontier = linked[frontier].any(dim=0) & ~reached
        reached = reached | frontier
    return bool(reached.all())


def spectral_gap(w: Tensor) -> float:
    """1 - |second eigenvalue| of a symmetric matrix: the larger, the faster clients agree.

    >>> round(spectral_gap(mixing_matrix("complete", 5)), 12)
    1.0
    """
    size = np.sort(np.abs(np.linalg.eigvalsh(w.double().cpu().numpy())))
    return 1.0 if len(size) == 1 else float(1 - size[-2])


def check_mixing_matrix(
    w: Tensor, num_clients: int | None = None, *, connected: bool = True, tolerance: float = 1e-6
) -> None:
    """Refuse a matrix that D-PSGD cannot mix with.

    Args:
        w: weights; `w[i, j]` is what client i takes from client j.
        num_clients: the size it must have, if given.
        connected: whether clients that never meet are a mistake.
        tolerance: slack for symmetry and row sums.

    Raises:
        ConfigError: w is not a tensor, not square, not of that size, not finite, negative, not
            symmetric, rows do not sum to one, or the graph falls apart.
    """
    given: Any = w
    require(isinstance(given, Tensor), "mixing matrix", type(given).__name__, "give a torch tensor")
    w, shape = w.double(), tuple(w.shape)
    if w.dim() != 2 or shape[0] != shape[1] or shape[0] == 0:
        raise ConfigError(f"mixing matrix has shape {shape}: give a square (K, K) matrix")
    if num_clients is not None and shape[0] != num_clients:
        raise ConfigError(
            f"mixing matrix has {shape[0]} rows for {num_clients} clients: "
            "give one row and one column a client"
        )
    if not bool(w.isfinite().all()) or bool((w < -tolerance).any()):
        raise ConfigError("mixing matrix has negative or non-finite entries: weights lie in [0, 1]")
    if bool(((w - w.T).abs() > tolerance).any()):
        raise ConfigError("mixing matrix is not symmetric: use (w + w.T) / 2 or Metropolis weights")
    sums = w.sum(dim=1)
    row = int((sums - 1).abs().argmax())
    if abs(float(sums[row]) - 1) > tolerance:
        raise ConfigError(
            f"mixing matrix row {row} sums to {float(sums[row]):.6g}, not 1: "
            "put the missing weight on the diagonal"
        )
    if connected and not is_connected(w):
        raise ConfigError(
            "mixing matrix is not connected: some clients never meet; add edges or a larger degree"
        )
