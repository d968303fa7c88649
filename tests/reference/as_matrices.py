"""The updates of SCooL-SBM with matrices in place of edges, as the loops have them."""

from scool.graph.edges import Edges
from scool.priors import sbm_updates
from scool.priors.pairs import Measured


def measured(pairs):
    """Edges of the pairs in a mask."""
    edges = Edges.of(pairs.mask)
    return Measured(edges, pairs.ratio[edges.i, edges.j], pairs.own)


def _at(edges, w):
    return w[edges.i, edges.j]


def update_w(pairs, omega, B, temperature):
    pairs = measured(pairs)
    return pairs.edges.on(sbm_updates.update_w(pairs, omega, B, temperature)).dense()


def update_omega(pairs, w, omega, gamma, B, order, lists=None):
    edges = Edges.of(pairs.mask)
    return sbm_updates.update_omega(edges, _at(edges, w), omega, gamma, B, order, lists)


def update_B(pairs, w, omega, B, pseudo_count):
    edges = Edges.of(pairs.mask)
    return sbm_updates.update_B(edges, _at(edges, w), omega, B, pseudo_count)


def sbm_bound(pairs, w, omega, gamma, alpha, B, temperature):
    pairs = measured(pairs)
    w = _at(pairs.edges, w)
    return sbm_updates.sbm_bound(pairs, w, omega, gamma, alpha, B, temperature)
