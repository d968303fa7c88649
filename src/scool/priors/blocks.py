"""What the block models share: their options; logarithms of B that stay finite; the terms and the
update around pi_i ~ Dirichlet(alpha); and first memberships, since symmetry between blocks must be
broken before the first sweep."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from scool.contracts import Evidence, SelfMode
from scool.errors import check_fields, require
from scool.graph.edges import Edges
from scool.priors.base import (
    GraphPrior,
    Measured,
    Null,
    S,
    check_null,
    read_edges,
    resolve_null,
)

SHARPNESS = 10.0  # similarities lie in [0, 1]; ten nats separate a seed's peers from strangers
PEERS = 5  # whose memberships a client averages; in a sparse round few of its own group are known
STEPS = 4  # from peer to peer, when the distance to a seed is estimated
PASSES = 15  # of the memberships from peer to peer
NEWTON_STEPS = 20
ALPHA_RANGE = (1e-4, 1e4)  # one draw per client says little about alpha: EM may drift without end
SMALLEST = 1e-6  # B lives in [1e-6, 1 - 1e-6]; at 0 or 1 the bound would be infinite


@dataclass(frozen=True)
class BlockOptions(GraphPrior[S]):
    """The options of a prior whose clients belong to M blocks, which may differ in defaults."""

    num_blocks: int = 5
    """M. Give at least the number of groups you expect."""
    self_mode: SelfMode = "gated"
    """`gated`: own data weighted by w_ii; `always`, `exclude`: own data counts fully, no w_ii."""
    temperature: float = 1.0
    """T; above 1 softens the graph, below 1 hardens it."""
    temperature_mode: Literal["entropy", "likelihood"] = "entropy"
    """`entropy` divides prior and likelihood by T, `likelihood` the likelihood alone."""
    null_loglik: Null = "uniform"
    """Log-likelihood that explains D_j without an edge; `auto`: 0, with a learned B `uniform`."""
    learn_B: bool = False
    """Estimate B in the M-step."""
    learn_alpha: bool = False
    """Estimate alpha in the M-step; the bound is nearly flat in it."""
    alpha: float = 1.0
    """Dirichlet parameter, (the start of) every component."""
    b_in: float = 0.8
    """(The start of) the probability of an edge inside a block."""
    b_out: float = 0.2
    """(The start of) the probability of an edge between blocks."""
    pseudo_count: float = 0.5
    """Added to the edges and non-edges B is estimated from, a Beta prior."""
    sweeps: int = 10
    """Most sweeps in one E-step."""
    tolerance: float = 1e-6
    """Sweeps end when no w changes by more."""
    warm_start: bool = True
    """Start from the memberships of the round before."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.num_blocks >= 1, "num_blocks", self.num_blocks, "give at least one block")
        require(self.temperature > 0, "temperature", self.temperature, "give a positive number")
        require(self.alpha > 0, "alpha", self.alpha, "give a positive number")
        require(0 < self.b_in < 1, "b_in", self.b_in, "give a probability inside (0, 1)")
        require(0 < self.b_out < 1, "b_out", self.b_out, "give a probability inside (0, 1)")
        require(self.pseudo_count >= 0, "pseudo_count", self.pseudo_count, "give 0 or more")
        require(self.sweeps >= 1, "sweeps", self.sweeps, "give at least one sweep")
        check_null(self.null_loglik)

    @property
    def stays(self) -> str:
        """A null model that has a number for each client."""
        is_of_each = isinstance(self.null_loglik, tuple) and len(self.null_loglik) > 1
        return "null_loglik" if is_of_each else ""

    def first_B(self) -> Tensor:
        """(M, M) b_in on and b_out off the diagonal."""
        shape = (self.num_blocks, self.num_blocks)
        return torch.full(shape, self.b_out, dtype=torch.float64).fill_diagonal_(self.b_in)

    def _pairs(self, evidence: Evidence) -> Measured:
        null = resolve_null(self.null_loglik, evidence, self.learn_B)
        scale = self.temperature if self.temperature_mode == "likelihood" else 1.0
        return read_edges(evidence, self.self_mode, null, scale)

    @property
    def _entropy_temperature(self) -> float:
        return self.temperature if self.temperature_mode == "entropy" else 1.0


# ---------------------------------------------------------------------- B, and pi_i ~ Dir(alpha)


class LogB(NamedTuple):
    """The two tables of the block term."""

    on: Tensor  # (M, M) log B
    off: Tensor  # (M, M) log(1 - B)

    @property
    def logit(self) -> Tensor:
        """(M, M) log B - log(1 - B)."""
        return self.on - self.off


def clip_probability(B: Tensor) -> Tensor:
    """Keep probabilities away from 0 and 1."""
    return B.clamp(SMALLEST, 1 - SMALLEST)


def log_B(B: Tensor) -> LogB:
    """log B and log(1 - B) of clipped probabilities.

    >>> bool(torch.isfinite(log_B(torch.tensor([[0.0, 1.0]])).logit).all())
    True
    """
    clipped = clip_probability(B)
    return LogB(clipped.log(), torch.log1p(-clipped))


def expected_log_pi(gamma: Tensor) -> Tensor:
    r"""$e_{ig} = \psi(\gamma_{ig}) - \psi(\sum_k \gamma_{ik})$, (K, M)."""
    return torch.digamma(gamma) - torch.digamma(gamma.sum(-1, keepdim=True))


def _log_normaliser(gamma: Tensor) -> Tensor:
    """lnGamma(sum_g gamma_g) - sum_g lnGamma(gamma_g)."""
    return torch.lgamma(gamma.sum(-1)) - torch.lgamma(gamma).sum(-1)


def alpha_terms(alpha: Tensor, e: Tensor) -> Tensor:
    r"""$\sum_{ig} (\alpha_g-1) e_{ig} + K \ln\Gamma(\sum\alpha) - K \sum_g \ln\Gamma(\alpha_g)$."""
    return ((alpha - 1) * e).sum() + len(e) * _log_normaliser(alpha)


def dirichlet_terms(alpha: Tensor, gamma: Tensor) -> Tensor:
    """E_q[log P(pi | alpha)] plus the entropy of q(pi)."""
    e = expected_log_pi(gamma)
    return alpha_terms(alpha, e) - ((gamma - 1) * e).sum() - _log_normaliser(gamma).sum()


def alpha_gradient(alpha: Tensor, e: Tensor) -> Tensor:
    r"""[SBM-alpha] $\partial F/\partial\alpha_g = \sum_i e_{ig} - K\psi(\alpha_g)
    + K\psi(\sum_k\alpha_k)$; the paper's extra sum over g is an error."""
    return e.sum(0) + len(e) * (torch.digamma(alpha.sum()) - torch.digamma(alpha))


def update_alpha(alpha: Tensor, e: Tensor) -> Tensor:
    """[SBM-alpha] Newton steps (Minka's O(M) form), halved until the bound does not fall."""
    for _ in range(NEWTON_STEPS):
        step = _newton_direction(alpha, e)
        new = _line_search(alpha, step, e)
        if torch.equal(new, alpha):
            break
        alpha = new
    return alpha


def _newton_direction(alpha: Tensor, e: Tensor) -> Tensor:
    r = alpha_gradient(alpha, e)
    q = -len(e) * torch.polygamma(1, alpha)
    c = len(e) * torch.polygamma(1, alpha.sum())
    if len(alpha) == 1:
        return torch.zeros_like(alpha)  # M = 1: pi = 1 whatever alpha is
    b = (r / q).sum() / (1 / c + (1 / q).sum())
    return -(r - b) / q


def _line_search(alpha: Tensor, step: Tensor, e: Tensor) -> Tensor:
    now = alpha_terms(alpha, e)
    size = 1.0
    while size > 1e-6:
        new = alpha + size * step
        if bool((new > 0).all()):
            new = new.clamp(*ALPHA_RANGE)
            if alpha_terms(new, e) >= now:
                return new
        size /= 2
    return alpha


# ---------------------------------------------------------------------- first memberships


def similarity(log_lik: Tensor, seen: Tensor) -> Tensor:
    """(K, K) mean of exp(l_ij) and exp(l_ji) over the directions measured; 1 for i = j."""
    likelihood = torch.where(seen, log_lik.clamp(max=0).exp(), 0.0)
    count = (seen.double() + seen.T.double()).clamp(min=1)
    near = (likelihood + likelihood.T) / count
    near.fill_diagonal_(1.0)
    return near


def farthest_seeds(near: Tensor, count: int, first: int) -> list[int]:
    """Clients picked one after another, each the least similar to those already picked."""
    seeds = [first]
    closest = near[first].clone()
    while len(seeds) < min(count, len(near)):
        closest[seeds] = torch.inf
        nxt = int(closest.argmin())
        seeds.append(nxt)
        closest = torch.maximum(closest, near[nxt])
    return seeds


def seeded_omega(near: Tensor, num_blocks: int, first: int) -> Tensor:
    """(K, M) softmax of the similarity to M farthest points; surplus blocks (M > K) start empty."""
    seeds = farthest_seeds(near, num_blocks, first)
    scores = torch.zeros(len(near), num_blocks, dtype=torch.float64)
    scores[:, : len(seeds)] = near[:, seeds]
    return (SHARPNESS * scores).softmax(1)


class Peers(NamedTuple):
    """The few others that a client resembles most, of those it was measured with."""

    ids: Tensor  # (K, b)
    valid: Tensor  # (K, b) bool

    def average(self, x: Tensor) -> Tensor:
        """(K, M) mean over each client's peers; 0 for a client without."""
        total = (x[self.ids] * self.valid[..., None]).sum(1)
        return total / self.valid.sum(1, keepdim=True).clamp(min=1)


def nearest_peers(pairs: Edges, count: int = PEERS) -> Peers:
    """By the mean of l_ij and l_ji over the directions measured."""
    k, off = len(pairs), pairs.take(~pairs.is_loop)
    i, j, values = (torch.cat(ends) for ends in ((off.i, off.j), (off.j, off.i), [off.values] * 2))
    total = Edges.gathered(k, i, j, values)
    near = total.on(total.values / Edges.gathered(k, i, j, torch.ones_like(values)).values)
    near = near.take(near.top(count))
    order = near.values.sort(descending=True, stable=True).indices
    order = order[near.i[order].sort(stable=True).indices]  # the nearest first, client by client
    slot = torch.arange(near.count) - near.ends[near.i]
    ids = torch.zeros(k, min(count, k), dtype=torch.int64)
    ids[near.i, slot] = near.j[order]
    return Peers(ids, torch.arange(ids.shape[1]) < near.degrees[:, None])


def scattered_seeds(peers: Peers, count: int, first: int | None = None) -> list[int]:
    """Clients picked one after another, each the hardest to reach from those already picked; of
    equals the one that most others resemble. A client without peers is never picked."""
    liked = torch.ones(len(peers.ids), dtype=torch.float64)
    liked.scatter_add_(0, peers.ids.flatten(), peers.valid.double().flatten())
    reached = torch.where(peers.valid.any(1), 0.0, torch.inf).double()
    seeds: list[int] = [] if first is None else [first]
    while len(seeds) < count:
        for seed in seeds[-1:]:
            reached = torch.maximum(reached, _walk(peers, seed))
        reached[seeds] = torch.inf
        if bool(reached.isinf().all()):
            break
        seeds.append(int(liked.masked_fill(reached > reached.min(), 0.0).argmax()))
    return seeds


def _walk(peers: Peers, seed: int) -> Tensor:
    """(K,) how easily the seed is reached from peer to peer; 1 at most."""
    found = torch.zeros(len(peers.ids), 1, dtype=torch.float64)
    found[seed] = 1.0
    for _ in range(STEPS):
        found = (found + peers.average(found)) / 2
    return found[:, 0] / found.max()


def spread_omega(peers: Peers, num_blocks: int, first: int | None = None) -> Tensor:
    """(K, M) where few pairs are measured: a client may never have met a seed, but its peers, or
    theirs, have. Memberships spread from M seeds from peer to peer; in each pass the larger shares
    gain."""
    num_clients = len(peers.ids)
    seeds = scattered_seeds(peers, num_blocks, first)
    own = torch.zeros(num_clients, num_blocks, dtype=torch.float64)
    own[seeds, range(len(seeds))] = 1.0
    omega = own
    for _ in range(PASSES):
        omega = peers.average(omega).square()
        omega[seeds] = own[seeds]
        omega = omega / omega.sum(1, keepdim=True).clamp(min=torch.finfo(omega.dtype).tiny)
    is_reached = omega.sum(1, keepdim=True) > 0.5
    return torch.where(is_reached, omega, 1 / num_blocks)


def first_omega(
    pairs: Edges, num_blocks: int, seeded: bool, attempt: int, rng: torch.Generator
) -> Tensor:
    """Memberships for one start, from the log-likelihoods of the measured pairs; later attempts
    begin their seeding at a random client."""
    num_clients = len(pairs)
    if not seeded:  # rows from the flat Dirichlet distribution
        draws = torch.empty(num_clients, num_blocks, dtype=torch.float64)
        draws = draws.exponential_(generator=rng)
        return draws / draws.sum(1, keepdim=True)
    first = int(torch.randint(num_clients, (), generator=rng)) if attempt > 0 else None
    if 2 * pairs.count < num_clients**2:
        return spread_omega(nearest_peers(pairs), num_blocks, first)
    seen = pairs.on(torch.ones(pairs.count, dtype=torch.bool))
    near = similarity(pairs.dense(), seen.dense())
    return seeded_omega(near, num_blocks, int(near.sum(1).argmax()) if first is None else first)
