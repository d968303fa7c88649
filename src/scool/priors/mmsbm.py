"""SCooL-MMSBM: a client may belong to several blocks, one for each of its pairs."""

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from scool.contracts import Evidence, SelfMode
from scool.errors import require
from scool.graph.edges import Edges
from scool.priors.base import (
    Measured,
    sweep_key,
)
from scool.priors.blocks import BlockOptions, expected_log_pi, first_omega, update_alpha
from scool.priors.mmsbm_updates import (
    mmsbm_bound,
    update_B,
    update_gamma,
    update_phi_recv,
    update_phi_send,
    update_w,
)
from scool.priors.sbm import beta_terms
from scool.randomness import generator
from scool.types import Info, Params


class MMSBMState(NamedTuple):
    """q(Y, s, r, pi) with alpha and B; tensors only."""

    w: Edges  # q(Y_ij = 1)
    phi_send: Edges  # (E, M) block of i towards j, for each measured pair
    phi_recv: Edges  # (E, M) block of j towards i
    gamma: Tensor  # (K, M)
    alpha: Tensor  # (M,)
    B: Tensor  # (M, M)
    started: Tensor  # bool scalar


@final
@dataclass(frozen=True)
class MMSBM(BlockOptions[MMSBMState]):
    r"""Mixed-membership block model prior (the paper's appendix), cases 1.2 x 2.3.

    $\pi_i \sim \mathrm{Dir}(\alpha)$; for every pair $s_{ij} \sim \mathrm{Cat}(\pi_i)$,
    $r_{ij} \sim \mathrm{Cat}(\pi_j)$, $Y_{ij} \sim \mathrm{Bern}(s_{ij}^\top B r_{ij})$.

    The paper never runs it. Defaults follow from its updates: B is learned against the uniform
    null model, alpha below 1 keeps memberships few.
    """

    self_mode: SelfMode = "always"
    """`always` or `exclude`: own data counts fully; there is no block for i = i to gate it."""
    learn_B: bool = True
    """Estimate B in the M-step."""
    alpha: float = 0.1
    """Dirichlet parameter, (the start of) every component."""

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "MMSBM has no block for i = i; take 'always' or 'exclude', or the SBM prior"
        require(self.self_mode != "gated", "self_mode", self.self_mode, remedy)

    def init(self, num_clients: int, theta0: Params, seed: int) -> MMSBMState:
        """No edges, no pairs, B with b_in on and b_out off the diagonal."""
        del theta0, seed
        M, nobody = self.num_blocks, Edges.none(num_clients, 0.0)
        phi = nobody.on(torch.zeros(0, M, dtype=torch.float64))
        alpha = torch.full((M,), self.alpha, dtype=torch.float64)
        gamma = alpha.expand(num_clients, -1).clone()
        return MMSBMState(nobody, phi, phi, gamma, alpha, self.first_B(), torch.tensor(False))

    def e_step(self, state: MMSBMState, evidence: Evidence) -> MMSBMState:
        """[E] Sweeps of w, phi and gamma, from the last memberships or from farthest seeds; while
        most pairs are measured from both, and the better bound stays."""
        pairs = self._pairs(evidence)
        starts: list[MMSBMState] = []
        if self.warm_start and bool(state.started):
            starts.append(_only_measured(state, pairs))
        if not starts or pairs.is_dense:
            rng = generator(sweep_key(evidence.seed, "mmsbm", evidence.round), "e-step")
            omega = first_omega(evidence.pairs, self.num_blocks, True, 0, rng)
            starts.append(_spread(state, omega, pairs))
        results = [self._sweep(start, pairs) for start in starts]
        best = results[0]
        if len(results) > 1:
            best = max(results, key=lambda result: float(self._bound(result, pairs)))
        return best._replace(started=torch.tensor(True))

    def m_step(self, state: MMSBMState, evidence: Evidence) -> MMSBMState:
        """[M] B and alpha, each if asked for."""
        if self.learn_B:
            send, recv = state.phi_send, state.phi_recv
            w = state.w.lookup(send)
            B = update_B(w, send.values, recv.values, state.B, self.pseudo_count)
            state = state._replace(B=B)
        if self.learn_alpha:
            alpha = update_alpha(state.alpha, expected_log_pi(state.gamma))
            state = state._replace(alpha=alpha)
        return state

    def elbo(self, state: MMSBMState, evidence: Evidence) -> Tensor:
        """[MMSBM-elbo], with the log density of the Beta prior where B is learned."""
        return self._bound(state, self._pairs(evidence))

    def describe(self, state: MMSBMState) -> Info:
        """`blocks`: (K,) the block that each client belongs to most."""
        return {"blocks": state.gamma.argmax(dim=1)}

    def grow(self, state: MMSBMState, fresh: MMSBMState) -> MMSBMState:
        """Newcomers with the present alpha, of which their first memberships are made: even ones.
        Those of others towards them are made of what is known of these."""
        found, late = super().grow(state, fresh), slice(len(state.gamma), None)
        found.gamma[late] = state.alpha
        return found

    def _bound(self, s: MMSBMState, pairs: Measured) -> Tensor:
        T = self._entropy_temperature
        w, send, recv = (x.lookup(pairs.edges) for x in (s.w, s.phi_send, s.phi_recv))
        bound = mmsbm_bound(pairs, w, send, recv, s.gamma, s.alpha, s.B, T)
        return bound + beta_terms(s.B, self.pseudo_count) if self.learn_B else bound

    def _sweep(self, s: MMSBMState, pairs: Measured) -> MMSBMState:
        """Repeat {w; phi_send; phi_recv; gamma}; end with w, which the method uses."""
        T, edges, gamma = self._entropy_temperature, pairs.edges, s.gamma
        w, send, recv = pairs.ratio, s.phi_send.values, s.phi_recv.values
        for sweep in range(self.sweeps):
            last, w = w, update_w(pairs, send, recv, s.B, T)
            if sweep > 0 and bool(((w - last).abs() < self.tolerance).all()):
                break
            send = update_phi_send(pairs, w, recv, gamma, s.B)
            recv = update_phi_recv(pairs, w, send, gamma, s.B)
            gamma = update_gamma(edges, s.alpha, send, recv)
        w = update_w(pairs, send, recv, s.B, T)
        phi = {"phi_send": edges.on(send), "phi_recv": edges.on(recv)}
        return s._replace(w=edges.on(w), gamma=gamma, **phi)


def _spread(state: MMSBMState, omega: Tensor, pairs: Measured) -> MMSBMState:
    """Every pair of a client starts from the client's own membership."""
    return _with_phi(state, pairs.edges, omega[pairs.edges.i], omega[pairs.edges.j])


def _only_measured(state: MMSBMState, pairs: Measured) -> MMSBMState:
    """Drop pairs no longer measured; new pairs start from what is known of the two clients."""
    edges, pi = pairs.edges, expected_log_pi(state.gamma).softmax(-1)
    known = state.phi_send.has(edges)[:, None]
    send = torch.where(known, state.phi_send.lookup(edges), pi[edges.i])
    recv = torch.where(known, state.phi_recv.lookup(edges), pi[edges.j])
    return _with_phi(state, edges, send, recv)


def _with_phi(state: MMSBMState, edges: Edges, send: Tensor, recv: Tensor) -> MMSBMState:
    gamma = update_gamma(edges, state.alpha, send, recv)
    return state._replace(phi_send=edges.on(send), phi_recv=edges.on(recv), gamma=gamma)
