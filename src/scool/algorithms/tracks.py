"""Several kinds of cooperation side by side, and for every owner the mix of them that pays."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from scool.algorithms.fedavg import FedAvg
from scool.algorithms.fedrep import FedRep
from scool.algorithms.local_only import LocalOnly
from scool.algorithms.scool import SCooL
from scool.algorithms.shared.checks import check_validation, require_validation
from scool.contracts import Engine, Meets, Method
from scool.data.federation import Task
from scool.errors import check_fields, require, unknown
from scool.graph.edges import Edges, Matrix
from scool.health import Reason
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import LOSSES
from scool.models.mixture import Mixture, as_mixture, member
from scool.priors import SBM, AnyPrior
from scool.priors.tracks import gaussian_log_lik, owner_weights, population_weights
from scool.types import Info, Params, Tree

KINDS = ("alone", "body", "graph", "common")
LEAST = -1e4  # of a log-likelihood: a model that fails on a sample weighs nothing, and stays finite
LOST = Reason("training", "loss or model in an earlier round")


class TracksState(NamedTuple):
    theta: Tree  # the mixtures; member a is the model of kind a, trained on all samples
    models: Mapping[str, Any]  # the state of each kind beside its models, which are in theta
    judges: Mapping[str, Any]  # the same kinds again, trained without the held-out samples
    weights: Tensor  # (K, A) omega; who takes no part in a round keeps its own
    lost: Tensor  # (2A, K) bool: whose training broke in a kind, models first, then judges


@final
@dataclass(frozen=True)
class Tracks(Method[TracksState]):
    r"""Four kinds of cooperation, trained side by side, and averaged per owner by evidence.

    The kinds: `alone` (local training), `body` (a shared body under a head of one's own, FedRep),
    `graph` (SCooL with a prior of the graph), `common` (one model for all, FedAvg). Which of them
    suits owner i is a latent variable: each sample is explained by one of the owner's models,
    $z_{is} \sim \mathrm{Cat}(\omega_i)$ with $\omega_i \sim \mathrm{Dir}(1 + \kappa\pi)$, and
    $\pi$, what suits the population, is shared ([TRACK-r], [TRACK-pi], [TRACK-w] in
    `priors/tracks.py`). An owner answers with
    $p_i(y \mid x) = \sum_a \omega_{ia}\, p(y \mid x; \theta_{ia})$.

    The evidence must come from samples that a model has not seen. So each kind is trained twice:
    the judges without a share of the samples, which they are judged by; the models that answer
    with all samples. This doubles epochs and bytes and costs no samples. A kind in which an
    owner's training breaks keeps the owner's last finite model there, and weighs as its losses
    say.

    `tracks` in a round's record has the weights (K, A), `population` has $\pi$; `graph` is
    $\sum_a \omega_{ia} w^a_{ij}$.
    """

    learns_graph = True
    trains_theta = False

    kinds: str = ",".join(KINDS)
    """The kinds of cooperation, with commas between."""
    prior: AnyPrior = field(default_factory=SBM)
    """Of the graph, for the kind `graph`."""
    sgd: LocalSGD = field(default_factory=LocalSGD)
    pooling: float = 20.0
    """kappa: how many samples of its own weigh as much as what suits the population."""
    validation: float = 0.15
    """Share of the training samples that judges set aside, where there are no validation data."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_validation(self.validation)
        require(self.pooling >= 0, "pooling", self.pooling, "give 0 or more")
        names = self._names
        require(bool(names), "kinds", self.kinds, f"name some of {', '.join(KINDS)}")
        require(len(set(names)) == len(names), "kinds", self.kinds, "name each once")
        for name in names:
            if name not in KINDS:
                unknown("kind", name, KINDS)

    @property
    def meets(self) -> Meets:  # pyright: ignore[reportIncompatibleVariableOverride]
        """A server, if one of the kinds needs it."""
        ways = {method.meets for method in self.methods.values()}
        return "server" if "server" in ways else "peers" if "peers" in ways else "nobody"

    @property
    def verbs(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Those of the kinds, and what judges them."""
        return frozenset({"judge", "view"}).union(*(m.verbs for m in self.methods.values()))

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.kinds.split(",") if name.strip())

    @property
    def methods(self) -> dict[str, Method[Any]]:
        """The method of each kind. The head of FedRep gets as many passes as the body."""
        heads = max(1, self.sgd.epochs)
        every: dict[str, Method[Any]] = {
            "alone": LocalOnly(sgd=self.sgd),
            "body": FedRep(sgd=self.sgd, head_epochs=heads),
            "graph": SCooL(prior=self.prior, sgd=self.sgd),
            "common": FedAvg(sgd=self.sgd),
        }
        return {name: every[name] for name in self._names}

    def predictor(self, module: nn.Module, task: Task) -> nn.Module:
        return Mixture(module, len(self._names), task)

    def init(self, engine: Engine, theta0: Params) -> TracksState:
        require_validation(engine)
        methods = self.methods
        models = {name: method.init(engine, theta0) for name, method in methods.items()}
        count = len(methods)
        equal = torch.full((engine.num_clients, count), 1 / count, dtype=torch.float64)
        return TracksState(
            theta=self._mixtures(engine, models, equal),
            models={name: state._replace(theta={}) for name, state in models.items()},
            judges={name: method.init(engine, theta0) for name, method in methods.items()},
            weights=equal,
            lost=torch.zeros(2 * count, engine.num_clients, dtype=torch.bool),
        )

    def admit(self, state: TracksState, clients: Tensor) -> TracksState:
        methods = self.methods.items()
        return state._replace(
            models={name: method.admit(state.models[name], clients) for name, method in methods},
            judges={name: method.admit(state.judges[name], clients) for name, method in methods},
        )

    def step(self, engine: Engine, state: TracksState, round: int) -> tuple[TracksState, Info]:
        methods, infos = self.methods, list[Info]()
        models, judges = dict[str, Any](), dict[str, Any]()
        views = [engine.view(f"model {name}", whole=True) for name in methods]
        views += [engine.view(f"judge {name}") for name in methods]
        for view, lost in zip(views, state.lost, strict=True):
            if bool(lost.any()):
                view.quarantine({client: LOST for client in range(len(lost)) if lost[client]})
            view.health.absent = engine.health.absent
        for a, (name, method) in enumerate(methods.items()):
            before = state.models[name]._replace(theta=member(state.theta, a))
            models[name], info = method.step(views[a], before, round)
            infos.append(info)
            judges[name], _ = method.step(views[len(methods) + a], state.judges[name], round)
        log_lik = self._evidence(engine, [judge.theta for judge in judges.values()])
        pi = population_weights(log_lik)
        weights = owner_weights(log_lik, pi, self.pooling)
        weights = weights.where(engine.active[:, None], state.weights)
        loss = torch.stack([info["train_loss"] for info in infos], dim=1)
        after = TracksState(
            theta=self._mixtures(engine, models, weights),
            models={name: found._replace(theta={}) for name, found in models.items()},
            judges=judges,
            weights=weights,
            lost=torch.stack([_lost(view, engine) for view in views]),
        )
        return after, {
            "train_loss": _average(loss, weights),
            "graph": _combined([info["graph"] for info in infos], weights, engine.active),
            "tracks": weights,
            "population": pi,
        }

    def _mixtures(self, engine: Engine, states: Mapping[str, Any], weights: Tensor) -> Tree:
        log_weights = weights.clamp_min(1e-30).log()[engine.owned.cpu()]
        models = [state.theta for state in states.values()]
        return as_mixture(models, log_weights.to(engine.device, engine.dtype))

    def _evidence(self, engine: Engine, thetas: list[Tree]) -> Tensor:
        """(K, S, A) log-likelihoods of the held-out samples; NaN where a client has no more, and
        for clients that take no part."""
        most = int(engine.val_sizes.max())
        kinds = [engine.judge(theta, "val", _per_sample(most), most + 1) for theta in thetas]
        found = torch.stack(kinds, dim=-1)
        found[~engine.active] = torch.nan
        outputs, values = int(found[:, 0].nan_to_num(0.0).max()), found[:, 1:]
        values = values.clamp(max=-LEAST)
        return gaussian_log_lik(2 * values, outputs) if outputs else -values


def _per_sample(most: int) -> Any:
    """A metric: 0 or the number of targets of regression, then the loss of each sample."""

    def losses(outputs: Tensor, targets: Tensor, classes: Tensor) -> Tensor:
        del classes
        is_class = not targets.is_floating_point()
        loss = LOSSES["classification" if is_class else "regression"](outputs, targets)
        row = torch.full((most + 1,), torch.nan, dtype=torch.float64)
        row[0] = 0 if is_class else targets.shape[1]
        row[1 : len(loss) + 1] = loss.nan_to_num(-LEAST, posinf=-LEAST)
        return row

    return losses


def _lost(view: Engine, engine: Engine) -> Tensor:
    """(K,) bool: whose training broke in this kind, and nowhere else."""
    lost = torch.zeros(engine.num_clients, dtype=torch.bool)
    lost[[client for client in view.health.reasons if client not in engine.health.reasons]] = True
    return lost


def _average(loss: Tensor, weights: Tensor) -> Tensor:
    """(K,) mean over the kinds that have a loss; NaN where none has."""
    there = ~loss.isnan()
    total = (weights * there).sum(dim=1)
    return (weights * loss.nan_to_num(0.0)).sum(dim=1) / total.masked_fill(total == 0, torch.nan)


def _combined(graphs: list[Matrix], weights: Tensor, active: Tensor) -> Edges:
    r"""$\sum_a \omega_{ia} w^a_{ij}$; a client that does not take part keeps to itself."""
    lists = [Edges.of(graph).nonzero_pairs().among(active) for graph in graphs]
    values = [e.values.double() * weights[e.i, a] for a, e in enumerate(lists)]
    i, j = torch.cat([e.i for e in lists]), torch.cat([e.j for e in lists])
    mixed = Edges.gathered(len(active), i, j, torch.cat(values))
    sums = mixed.row_sums()
    mixed = mixed.on(mixed.values / sums[mixed.i])
    alone = Edges.loops(len(active), sums == 0)
    return mixed.updated(alone.on(torch.ones(alone.count, dtype=torch.float64)))
