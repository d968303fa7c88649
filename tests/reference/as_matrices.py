"""The updates of SBM and MMSBM with matrices in place of edges, as the loops have them."""

from typing import NamedTuple

import torch
from torch import Tensor

from scool.graph.edges import Edges
from scool.priors import mmsbm_updates, sbm
from scool.priors.base import Measured, read_edges


class Pairs(NamedTuple):
    """The measured pairs as matrices."""

    mask: Tensor  # (K, K) bool
    ratio: Tensor  # (K, K), 0 outside the mask
    own: Tensor

    @property
    def off(self):
        return self.mask & ~torch.eye(len(self.mask), dtype=torch.bool)


def read_pairs(evidence, self_mode, null, scale=1.0):
    """What `read_edges` reads."""
    found = read_edges(evidence, self_mode, null, scale)
    mask = found.edges.on(torch.ones(found.edges.count, dtype=torch.bool), False).dense()
    return Pairs(mask, found.edges.on(found.ratio).dense(), found.own)


def dense_state(state):
    """A prior's state with matrices for its edges."""
    found = {n: x.dense() for n, x in state._asdict().items() if isinstance(x, Edges)}
    return state._replace(**found)


def measured(pairs):
    """Edges of the pairs in a mask."""
    edges = Edges.of(pairs.mask)
    return Measured(edges, pairs.ratio[edges.i, edges.j], pairs.own)


def _at(edges, w):
    return w[edges.i, edges.j]


def update_w(pairs, omega, B, temperature):
    pairs = measured(pairs)
    return pairs.edges.on(sbm.update_w(pairs, omega, B, temperature)).dense()


def update_omega(pairs, w, omega, gamma, B, order, lists=None):
    edges = Edges.of(pairs.mask)
    return sbm.update_omega(edges, _at(edges, w), omega, gamma, B, order, lists)


def update_B(pairs, w, omega, B, pseudo_count):
    edges = Edges.of(pairs.mask)
    return sbm.update_B(edges, _at(edges, w), omega, B, pseudo_count)


def sbm_bound(pairs, w, omega, gamma, alpha, B, temperature):
    pairs = measured(pairs)
    w = _at(pairs.edges, w)
    return sbm.sbm_bound(pairs, w, omega, gamma, alpha, B, temperature)


class mixed:
    """Those of MMSBM; phi (K, K, M), zero outside the mask."""

    @staticmethod
    def update_w(pairs, send, recv, B, temperature):
        p = measured(pairs)
        found = mmsbm_updates.update_w(p, _at(p.edges, send), _at(p.edges, recv), B, temperature)
        return p.edges.on(found).dense()

    @staticmethod
    def update_phi_send(pairs, w, recv, gamma, B):
        p = measured(pairs)
        found = mmsbm_updates.update_phi_send(p, _at(p.edges, w), _at(p.edges, recv), gamma, B)
        return p.edges.on(found).dense()

    @staticmethod
    def update_phi_recv(pairs, w, send, gamma, B):
        p = measured(pairs)
        found = mmsbm_updates.update_phi_recv(p, _at(p.edges, w), _at(p.edges, send), gamma, B)
        return p.edges.on(found).dense()

    @staticmethod
    def update_gamma(alpha, send, recv):
        edges = Edges.complete(len(send))
        return mmsbm_updates.update_gamma(edges, alpha, _at(edges, send), _at(edges, recv))

    @staticmethod
    def update_B(w, send, recv, B, pseudo_count):
        edges = Edges.complete(len(send))
        w, send, recv = (_at(edges, x) for x in (w, send, recv))
        return mmsbm_updates.update_B(w, send, recv, B, pseudo_count)

    @staticmethod
    def mmsbm_bound(pairs, w, phi_send, phi_recv, gamma, alpha, B, temperature):
        p = measured(pairs)
        w, send, recv = (_at(p.edges, x) for x in (w, phi_send, phi_recv))
        return mmsbm_updates.mmsbm_bound(p, w, send, recv, gamma, alpha, B, temperature)
