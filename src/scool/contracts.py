"""Every promise on one page: what a prior, an engine, a method and a recorder are.

Rows of a K x K matrix are receivers, columns are sources: `w[i, j]` says how much client i learns
FROM client j, everywhere. K is the number of clients, n the number held by this process. A graph
is a matrix or a list of edges (`Matrix`): what is asked with edges is answered with edges, so that
the work of many clients with few neighbours does not grow with the square of K.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from scool.data.federation import Task
from scool.graph.edges import Edges, Matrix
from scool.graph.growing import laid_over
from scool.health import Health, Reason
from scool.learning.local_sgd import LocalSGD, Pull, Push
from scool.learning.losses import CrossDraw, Loss
from scool.types import Info, Params, Tree

if TYPE_CHECKING:
    from scool.engine.ledger import Ledger

Split = Literal["train", "val", "test"]
Route = Literal["peers", "server", "held"]  # held: the model was sent before; no traffic
SelfMode = Literal["gated", "always", "exclude"]
Mixes = Literal["updates", "models"]
Meets = Literal["nobody", "peers", "server"]


class Evidence(NamedTuple):
    """What the clients report to the graph after local learning. All of it is equal on every
    process, except `updates`: each process has those of the clients that it holds."""

    log_lik: Matrix  # log P(D_j | theta_i) as it enters the posterior (minus the mean loss)
    seen: Matrix  # bool: the pairs measured this round; all others enter no sum
    uniform: Tensor | float = 0.0  # of the uninformed predictor on D_j (the "uniform" null model)
    updates: Mapping[str, Tensor] | None = None  # theta_i^(t+1/2) - theta^0 of those held here
    owned: Tensor | None = None  # (n,) ids of the clients held here; None: all K
    reports: Tensor | None = None  # (K, ...) of `Prior.report`; None: the prior has all updates
    gradient: Params | None = None  # of `Prior.gradient`, summed; None: the prior's own is all
    round: int = 0
    seed: int = 0  # of the run: random numbers are a function of it and the round

    @property
    def pairs(self) -> Edges:
        """The measured pairs with their log-likelihoods, float64."""
        seen = Edges.of(self.seen).nonzero_pairs()
        if isinstance(self.log_lik, Edges):
            return seen.on(self.log_lik.lookup(seen).double())
        return seen.on(self.log_lik.cpu().double()[seen.i, seen.j])

    def dense(self) -> tuple[Tensor, Tensor]:
        """`log_lik` (K, K), 0 for pairs that were not measured, and `seen` (K, K), for a prior
        whose formulas are those of matrices."""
        pairs = self.pairs
        seen = pairs.on(torch.ones(pairs.count, dtype=torch.bool), False)
        return pairs.dense(), seen.dense()


MatrixT = TypeVar("MatrixT", Edges, Tensor)
S = TypeVar("S")  # the state of a prior or of a method: a NamedTuple of tensors, trees and states


class Prior(Protocol[S]):
    """P(Y) or P(Y | theta) with its variational family. Pure; the state has a field `w`, edges or a
    matrix (K, K)."""

    @property
    def mixes(self) -> Mixes:
        """What w averages: the updates of the sources (case 1.2) or their models (Dirac, 1.1)."""
        ...

    @property
    def self_mode(self) -> SelfMode:
        """Whether a client's own data is gated by w_ii or always counts fully."""
        ...

    @property
    def reports(self) -> bool:
        """Whether clients call `report` before, and `gradient` after, each E-step."""
        ...

    def init(self, num_clients: int, theta0: Params, seed: int) -> S: ...

    def e_step(self, state: S, evidence: Evidence) -> S:
        """[E]: w and the other parameters of q."""
        ...

    def report(self, state: S, updates: Mapping[str, Tensor]) -> Tensor:
        """(n, ...) what the clients held here report of their updates to all, e.g. embeddings;
        `evidence.reports` (K, ...) has the reports of all clients."""
        ...

    def gradient(self, state: S, evidence: Evidence) -> Params:
        """The part of the clients held here in the gradient of shared parameters;
        `evidence.gradient` of the M-step is the sum."""
        ...

    def m_step(self, state: S, evidence: Evidence) -> S:
        """[M]: alpha, B, phi; never theta."""
        ...

    def elbo(self, state: S, evidence: Evidence) -> Tensor:
        """The part of the bound that depends on the graph, a scalar."""
        ...

    def ranking(self, state: S, evidence: Evidence) -> Matrix:
        """A client keeps the sources that are largest here when the graph gets sparse."""
        ...

    def pull(self, state: S, evidence: Evidence) -> Tree | None:
        """What the prior adds to G_i of [M]: minus the gradient of log P(Y | theta) in theta_i."""
        ...

    def describe(self, state: S) -> Info:
        """What a person may want to see besides w, e.g. `blocks` (K,)."""
        ...

    def grow(self, state: S, fresh: S) -> S:
        """The state when there are more clients than it is of; `fresh` is a state of all."""
        ...


class Trained(NamedTuple):
    """What local learning gives back."""

    theta: Tree  # theta^(t+1/2), a row for each client held here, or for each pair
    loss: Tensor  # (K,), or one per pair: mean over the local steps; NaN for clients in quarantine


class Updates(NamedTuple):
    """theta_i - theta_ij of c clients that had m visits each."""

    theta: Tree  # theta_i of the clients held here
    visited: Tree  # theta_ij, as `train_at` gives them
    clients: Tensor  # (c,) rows of theta; on the device of the models, as the next
    rows: Tensor  # (c, m) rows of visited; -1: an update of 0


class Products(NamedTuple):
    """Inner products of the updates of each client, of T tensors one after the other."""

    values: Tensor  # (T, c, m, m) float64, on the CPU
    errors: list[float]  # (T) bounds of how far off they are, beside the diagonal


PerSample = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(outputs (s, C), targets (s, ...), classes (C,) bool) -> a number per sample (s,), or several."""
PerClient = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(outputs (s, C), targets (s, ...), classes (C,) bool) of a whole client -> numbers (m,)."""


class Engine(Protocol):
    """Where clients live. They meet through these verbs and nowhere else, and each is counted.

    One process holds all K clients (`local`), K / ranks of them, or one (a peer). Trees have a row
    for each client held here. Numbers about pairs (K, K) and about clients (K,) are whole and equal
    everywhere; on an elastic peer, what is not known here is NaN, and only row `owned` is
    authoritative.
    """

    @property
    def offers(self) -> frozenset[str]:
        """The verbs that it carries out; `prepare` refuses a method that uses others."""
        ...

    @property
    def num_clients(self) -> int: ...
    @property
    def owned(self) -> Tensor:
        """(n,) ids of the clients held here."""
        ...

    @property
    def sizes(self) -> Tensor:
        """(K,) number of training samples of each client."""
        ...

    @property
    def val_sizes(self) -> Tensor:
        """(K,) number of validation samples of each client."""
        ...

    @property
    def uniform_log_lik(self) -> float:
        """log-likelihood of the uninformed predictor: -log C, or the best constant (regression)."""
        ...

    @property
    def truth(self) -> Tensor | None:
        """(K, K) the true graph where it is known; only the reference method may look."""
        ...

    @property
    def seed(self) -> int: ...
    @property
    def device(self) -> torch.device:
        """Where trees live; numbers about pairs and clients are on the CPU."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of the models."""
        ...

    @property
    def loss(self) -> Loss:
        """What is minimised, per sample: (outputs (s, C), targets (s, ...)) -> (s,)."""
        ...

    @property
    def norms(self) -> frozenset[str]:
        """The tensors of the model that belong to layers which normalise: scales, shifts and
        running statistics."""
        ...

    @property
    def ledger(self) -> "Ledger":
        """What the verbs have cost since the last round was closed: messages, bytes, samples."""
        ...

    @property
    def health(self) -> Health:
        """Who is in quarantine (non-finite data, losses or models), and who is absent."""
        ...

    @property
    def active(self) -> Tensor:
        """(K,) bool: clients that are neither in quarantine nor absent."""
        ...

    def begin_round(self, round: int) -> None:
        """Called once, before the step of a round. Absences do not change until the next round; a
        peer decides here whom it counts on."""
        ...

    def begin_with(self, models: Tree | None) -> None:
        """From now on `replicate` gives every client its row of these (K, ...) on the CPU; None:
        all get the same again."""
        ...

    def replicate(self, theta0: Params) -> Tree:
        """The first model of every client held here: theta0, unless the client has its own."""
        ...

    def empty(self) -> "Engine":
        """The same engine with no client held here. Tensors of a method's first state that have no
        rows there are those with one row per client; all others are common."""
        ...

    def view(self, name: str, module: nn.Module | None = None, *, whole: bool = False) -> "Engine":
        """The same clients and the same ledger with a separate health, kept under a name: with
        another network, or (`whole`) with their validation samples among the training samples. For
        a method that trains several models per client, which fail independently."""
        ...

    def train(
        self,
        theta: Tree,
        sgd: LocalSGD,
        round: int,
        among: Tensor | None = None,
        pull: Pull | Push | None = None,
        only: frozenset[str] | None = None,
    ) -> Trained:
        """The hot loop: the local steps of every client, or of those in `among` (K,) bool. `pull`
        adds a proximal or a linear term for the tensors it names, `only` says which learn. A client
        whose numbers stop being finite keeps the model it came with and goes into quarantine."""
        ...

    def train_at(self, theta: Tree, pairs: Matrix, sgd: LocalSGD, round: int) -> Trained:
        """theta_i after the local steps of client j, on that client's data and with its batches of
        the round, for the pairs (i, j) asked for: one row for each pair of the clients held here,
        receiver after receiver. The models travel there and back. The losses are those of all
        pairs, (E,) of edges and (K, K) of a matrix, NaN for pairs not asked for. Models that are
        not finite are returned as they are, with a loss of NaN; with a client in quarantine
        theta_i stays as it is. The rows are lent: the next call that trains, which must not start
        from them, may overwrite them."""
        ...

    def products(self, updates: Updates) -> Products:
        """The inner products of the updates that `train_at` made. No traffic."""
        ...

    def weighted_sums(self, updates: Updates, weights: Tensor) -> Tree:
        """(c, ...) the sums of updates by weights (T, c, m), without traffic. An update of weight 0
        is left out, finite or not."""
        ...

    def mix(self, w: Matrix, tree: Tree, via: Route = "peers", overwrite: bool = False) -> Tree:
        """out_i = sum_j w_ij x_j over the nonzero w_ij; the share of a client that is not active
        goes to the rest of the row, and x_i stays where client i is not active. With a server an
        absent client gets its sum, too, and fetches it when it is back. w is finite, which is
        checked; signs and sums of rows are up to the method. `overwrite`: the result may
        take the place of the tree in memory."""
        ...

    def fetch(self, tree: Tree, pairs: Matrix) -> None:
        """x_j travels to client i for the pairs (i, j). The verbs for models that have met
        (`inner`, `squared_distances`, `mix` of what is held) may then use it."""
        ...

    def cross_loss(self, theta: Tree, pairs: MatrixT, draw: CrossDraw, round: int) -> MatrixT:
        """The mean loss of theta_i on a draw of D_j for the pairs asked for, NaN elsewhere."""
        ...

    def peer_loss(
        self, theta: Tree, pairs: MatrixT, draw: CrossDraw, round: int, split: Split = "train"
    ) -> MatrixT:
        """The mean loss of theta_j on a draw of D_i for the pairs (i, j) asked for, NaN
        elsewhere: client i fetches the models of its peers and keeps the losses to itself."""
        ...

    def cross_gradient(self, theta: Tree, w: Matrix, sgd: LocalSGD, round: int) -> Tree:
        """sum_j w_ij grad L(batch_j; theta_i) over the nonzero w_ij, each batch the first of client
        j in that round; 0 for a client in quarantine."""
        ...

    def gradient(self, theta: Tree, split: Split) -> Trained:
        """The gradient of each client's mean loss over all its samples of a split (in `theta`),
        and that loss. A client without samples: zero and NaN."""
        ...

    def squared_distances(self, tree: Tree, other: Tree | None = None) -> Tensor:
        """(K, K) ||x_i - y_j||^2, with y another tree or x itself, of models that have met already:
        not counted."""
        ...

    def inner(self, a: Tree, b: Tree) -> Tensor:
        """(K, K) <a_i, b_j>, of trees that have met already: not counted."""
        ...

    def measure(self, theta: Tree, split: Split, metric: PerSample) -> Tensor:
        """(K,) mean of a metric over each client's own samples, (K, m) of one that gives m numbers;
        NaN where a client has none."""
        ...

    def judge(self, theta: Tree, split: Split, metric: PerClient, count: int) -> Tensor:
        """(K, count) numbers that need all outputs of a client at once, such as ranks. The metric
        is called client by client, on the CPU and in float64; NaN where a client has no samples."""
        ...

    def gather(self, rows: Tensor) -> Tensor:
        """Rows of the clients held here -> rows of all K. For small things."""
        ...

    def total(self, x: Tensor) -> Tensor:
        """Sum over all processes, e.g. the gradient of a parameter that everyone shares."""
        ...

    def collect(self, tree: Tree) -> Tree:
        """The rows of all K clients on the first process, in order; elsewhere, and on a peer, those
        held here. On the CPU."""
        ...

    def settle(self, graph: Matrix, tree: Tree) -> Tree:
        """Called between rounds: the engine may put clients that learn from each other on the same
        process. The rows of the tree that belong to the clients held here from now on; the tree
        itself if none moved. Influences results by rounding only."""
        ...

    def layout(self) -> Mapping[str, Tensor]:
        """Which process holds which client, for checkpoints in parts, one per process; empty for an
        engine that writes a single file."""
        ...

    def restore(self, layout: Mapping[str, Tensor]) -> None:
        """Hold the clients that this process held when a checkpoint with such a layout was written,
        so that a run goes on to the same bits; as at the start if that was another number of
        processes."""
        ...

    def quarantine(self, reasons: Mapping[int, Reason]) -> None:
        """Leave these clients out from now on, e.g. those that a checkpoint names."""
        ...


VERBS = frozenset(
    "train train_at products weighted_sums mix fetch cross_loss peer_loss cross_gradient gradient "
    "squared_distances inner measure judge gather total view".split()
)
"""All verbs that a method may use."""


class Method(Generic[S]):
    """One method: a frozen dataclass whose fields are its options. It writes `init` and `step`, and
    declares what it needs where that differs from the defaults below. S has a field `theta`, the
    models that are scored and kept. A class of your own with `init` and `step` need not inherit
    from this one: `scool.run.checks.as_method` reads which of these names it has.
    """

    sgd: LocalSGD = LocalSGD()
    """The local steps; a field of every method that has options for them."""
    validation: float = 0.0
    """The share of the training samples that it sets aside as validation samples, where a
    federation has none."""
    judges_all: bool = True
    """Every client needs validation samples; otherwise one that cannot spare any has none."""
    averages: bool = True
    """The weights it mixes with (`graph` in Info) are 0 or more, and every row sums to one."""
    trains_theta: bool = True
    """The next round starts from the models in `theta`, not from others kept beside them."""
    finds_rate: bool = False
    """It finds a learning rate by itself where `sgd` has 0."""
    learns_graph: bool = False
    """The weights depend on what the clients learned, not only on options and the seed."""
    averages_updates: str = ""
    """The option because of which it averages updates; empty where it averages models."""
    adds_up: str = ""
    """What of its state would add up what missing peers did not send, in a word; empty: nothing."""
    stays: str = ""
    """What of it is made for one number of clients, in a word; empty: it can grow."""
    meets: Meets = "peers"
    """Whom a client exchanges models with."""
    verbs: frozenset[str] = frozenset()
    """The verbs of the engine that `step` uses; empty: undeclared."""

    def init(self, engine: Engine, theta0: Params) -> S:
        """The state before the first round."""
        raise NotImplementedError

    def step(self, engine: Engine, state: S, round: int) -> tuple[S, Info]:
        """One round. Info has `train_loss` and `graph`, the weights that were mixed with (the
        identity where nothing is mixed), which are finite."""
        raise NotImplementedError

    def admit(self, state: S, clients: Tensor) -> S:
        """The state when these clients (n,) come back or join: others may learn from them from now
        on."""
        del clients
        return state

    def grow(self, state: S, fresh: S) -> S:
        """The state when there are more clients than it is of, which nobody knows anything about:
        `fresh` is a state of all."""
        return laid_over(fresh, state)

    def predictor(self, module: nn.Module, task: Task) -> nn.Module:
        """The network that `theta` are the parameters of, which is scored, kept and exported: the
        module itself, unless what a client answers with is more than one such model."""
        del task
        return module

    def complete(self) -> Self:
        """The same with the contents of the files that its options name, so that records have them
        too."""
        return self

    def remark(self, rounds: int) -> str:
        """What was asked for and has no effect within this many rounds; empty if all has one."""
        return ""

    @property
    def around(self) -> Mapping[str, float]:
        """The options of the wrappers around it, by the names that records have; empty without
        wrappers."""
        return {}

    @property
    def plain(self) -> Any:
        """The method without wrappers around it; its name and fields are what records keep."""
        return self


class OwnMethod(Protocol):
    """The least that your own method needs, without inheriting from `Method`."""

    def init(self, engine: Engine, theta0: Params) -> Any: ...
    def step(self, engine: Engine, state: Any, round: int) -> tuple[Any, Info]: ...


class Recorder(Protocol):
    """Watches a run and never changes it."""

    def start(self, header: Mapping[str, Any], first_round: int) -> None: ...
    def round(self, row: Mapping[str, Any], info: Info) -> None: ...
    def end(self, result: Any) -> None: ...
