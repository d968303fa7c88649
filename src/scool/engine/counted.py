"""What each meeting of clients costs, as if each were a machine of its own: one place, so that all
engines count alike."""

from torch import Tensor

from scool.contracts import Route
from scool.engine.edges import PairList
from scool.ledger import Ledger
from scool.types import Tree


def model_bytes(tree: Tree) -> int:
    """Bytes of one client's model on the way to another."""
    return sum(t[0].numel() * t.element_size() for t in tree.values())


def _between(edges: PairList) -> int:
    """How many are pairs of two different clients."""
    return int((edges.i != edges.j).sum())


def count_train_at(ledger: Ledger, theta: Tree, edges: PairList) -> None:
    """A model goes there and back, unless it trains at home."""
    ledger.add("train_at", 2 * _between(edges), model_bytes(theta))


def count_mix(ledger: Ledger, tree: Tree, edges: PairList, active: Tensor, via: Route) -> None:
    """A model a nonzero weight; with a server each participant fetches the common model and sends
    its own."""
    if via == "server":
        participants = edges.j[active[edges.i]].unique()
        ledger.add("server", 2 * len(participants), model_bytes(tree))
    elif via == "peers":
        ledger.add("mix", _between(edges), model_bytes(tree))


def count_fetch(ledger: Ledger, tree: Tree, edges: PairList) -> None:
    ledger.add("fetch", _between(edges), model_bytes(tree))


def count_cross(ledger: Ledger, theta: Tree, edges: PairList, num_clients: int) -> None:
    """theta_i travels to j, one number comes back, and everyone learns the rows."""
    ledger.add("cross_models", _between(edges), model_bytes(theta))
    ledger.add("cross_losses", _between(edges), 4)
    longest = int(edges.i.bincount(minlength=1).max())
    ledger.add("rows", num_clients * (num_clients - 1), 4 * longest)


def count_peers(ledger: Ledger, theta: Tree, edges: PairList) -> None:
    ledger.add("peer_models", _between(edges), model_bytes(theta))


def count_cross_gradient(ledger: Ledger, theta: Tree, edges: PairList) -> None:
    """The model there, the gradient back."""
    ledger.add("cross_gradients", 2 * _between(edges), model_bytes(theta))


def count_gather(ledger: Ledger, rows: Tensor, num_clients: int) -> None:
    """Everyone's row to everyone."""
    size = rows[0].numel() * rows.element_size()
    ledger.add("gather", num_clients * (num_clients - 1), size)


def count_total(ledger: Ledger, x: Tensor, num_clients: int) -> None:
    """Everyone's part to one, the sum back."""
    ledger.add("sum", 2 * (num_clients - 1), x.numel() * x.element_size())
