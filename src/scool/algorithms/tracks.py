"""Several kinds of cooperation side by side, and for every owner the mixture of them that helps."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor, nn

from scool.algorithms.fedavg import FedAvg
from scool.algorithms.fedrep import FedRep
from scool.algorithms.local_only import LocalOnly
from scool.algorithms.scool import SCooL
from scool.algorithms.shared.checks import check_validation, require_validation
from scool.algorithms.shared.evidence import (
    are_weights,
    from_samples,
    from_sums,
    told_by_all,
)
from scool.algorithms.shared.side_by_side import average_loss, combined_graph
from scool.contracts import Engine, Meets, Method
from scool.data.federation import Task
from scool.errors import check_fields, require, unknown
from scool.health import Reason
from scool.learning.local_sgd import LocalSGD
from scool.models import parameters_of
from scool.models.mixture import Mixture, as_mixture, member
from scool.priors import SBM, AnyPrior
from scool.types import Info, Params, Tree

KINDS = ("alone", "body", "graph", "common", "drawn")
LOST = Reason("training", "loss or model in an earlier round")
CALM = 20  # rounds without a change of the weights after which they have settled
MOVED = 0.05  # of its weight that the mean owner gives to other kinds: above this, not settled
FEWEST = 10  # peers of the kind `graph`: models that learn from fewer drift apart
LEAST = 0.05  # weights of an owner below this become 0 when judging ends


class TracksState(NamedTuple):
    theta: Tree  # the mixtures; member a is the model of kind a, trained on all samples
    models: Mapping[str, Any]  # the state of each kind beside its models, which are in theta
    judges: Mapping[str, Any]  # the same kinds again, trained without the held-out samples
    weights: Tensor  # (K, A) omega
    population: Tensor  # (A,) pi
    sharpness: Tensor  # (A,) beta
    scores: Tensor  # (K, A) of the judges on the held-out samples; NaN: never judged
    anchor: Tensor  # (K, A) omega when it last moved
    calm: Tensor  # () rounds since then; CALM: judging is over
    lost: Tensor  # (2, A, K) bool: clients whose training broke, of the models and of the judges


@final
@dataclass(frozen=True)
class Tracks(Method[TracksState]):
    r"""Kinds of cooperation, trained side by side, and averaged per owner by evidence.

    The kinds: `alone` (local training), `body` (a shared body under a personal head, FedRep),
    `graph` (SCooL with a prior of the graph), `common` (one model for all, FedAvg), and if asked
    for `drawn` (SCooL with peers drawn by the graph). Which of them suits owner i is a latent
    variable: each sample is explained by one of the owner's models,
    $z_{is} \sim \mathrm{Cat}(\omega_i)$ with $\omega_i \sim \mathrm{Dir}(1 + \kappa\pi)$, and
    $\pi$, what suits the population, is shared ([TRACK-r], [TRACK-pi], [TRACK-w] in
    `priors/tracks.py`). An owner answers with
    $p_i(y \mid x) = \sum_a \omega_{ia}\, p(y \mid x; \theta_{ia})$.

    The evidence must come from samples that a model has not seen. So each kind is trained twice:
    the judges without a share of the samples, which they are judged by; the models that answer
    with all samples, so that none is lost. When the weights have settled, judging is over: the
    judges and the kinds that nobody uses train no more. With `evidence="sums"` no number about a
    single sample leaves its owner: owners tell sums, and $\pi$ takes one step of EM in a round. A
    kind in which an owner's training breaks keeps its last finite model there.

    By kind, a round's record has in `tracks` the weights (K,), in `population` $\pi$, in `held_out`
    the scores (K,) of the judges; `graph` is $\sum_a \omega_{ia} w^a_{ij}$.
    """

    learns_graph = True
    trains_theta = False
    judges_all = False

    kinds: str = "alone,body,graph,common"
    """The kinds of cooperation, separated by commas."""
    prior: AnyPrior = field(default_factory=SBM)
    """The prior of the graph, for the kinds `graph` and `drawn`."""
    sgd: LocalSGD = field(default_factory=LocalSGD)
    fraction: float = 0.0
    """Peers of the kind `graph`, as a fraction of all clients, at least ten; 0: a tenth."""
    pooling: float = 20.0
    """kappa: the number of an owner's samples that weigh as much as what suits the population."""
    validation: float = 0.2
    """Share of the training samples set aside to judge by, if there are no validation data."""
    aggregate: Literal["updates", "models"] = "updates"
    """What the kind `graph` averages."""
    evidence: Literal["samples", "sums"] = "samples"
    """samples: weights by the losses of all held-out samples in one place; sums: these stay with
    their owners, who tell sums over them."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_validation(self.validation)
        require(0 <= self.fraction <= 1, "fraction", self.fraction, "give a fraction, or 0")
        require(self.pooling >= 0, "pooling", self.pooling, "give 0 or more")
        names = self._names
        require(bool(names), "kinds", self.kinds, f"name some of {', '.join(KINDS)}")
        require(len(set(names)) == len(names), "kinds", self.kinds, "name each once")
        for name in names:
            if name not in KINDS:
                unknown("kind", name, KINDS)

    @property
    def meets(self) -> Meets:  # pyright: ignore[reportIncompatibleVariableOverride]
        """A server, if one of the kinds needs one."""
        ways = {method.meets for method in self.methods().values()}
        return "server" if "server" in ways else "peers" if "peers" in ways else "nobody"

    @property
    def verbs(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The verbs of all kinds, and those that judge them."""
        kinds = self.methods().values()
        judging = ["judge", "view", "gather"] if self.evidence == "sums" else ["judge", "view"]
        return frozenset(judging).union(*(kind.verbs for kind in kinds))

    @property
    def averages_updates(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return next(filter(None, (kind.averages_updates for kind in self.methods().values())), "")

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.kinds.split(",") if name.strip())

    def methods(self, clients: int = 100) -> dict[str, Method[Any]]:
        """The method of each kind. The head of FedRep gets as many passes as the body."""
        sgd, fraction = self.sgd, min(1.0, max(self.fraction or 0.1, FEWEST / clients))
        graph = SCooL(prior=self.prior, sgd=sgd, fraction=fraction, aggregate=self.aggregate)
        every: dict[str, Method[Any]] = {
            "alone": LocalOnly(sgd=sgd),
            "body": FedRep(sgd=sgd, head_epochs=max(1, sgd.epochs)),
            "graph": graph,
            "common": FedAvg(sgd=sgd),
            "drawn": replace(graph, peers="drawn", aggregate="models"),
        }
        return {name: every[name] for name in self._names}

    def kinds_of(self, model: Params) -> list[str]:
        """The kinds that are possible for a model: one with a single layer has no body."""
        layers = {name.rpartition(".")[0] for name in model}
        kinds = [name for name in self._names if name != "body" or len(layers) > 1]
        return kinds or [*self._names]

    def predictor(self, module: nn.Module, task: Task) -> nn.Module:
        return Mixture(module, len(self.kinds_of(parameters_of(module))), task)

    def init(self, engine: Engine, theta0: Params) -> TracksState:
        require_validation(engine, of_all=self.judges_all)
        kinds, owners = self.kinds_of(theta0), engine.num_clients
        methods, count = self.methods(owners), len(kinds)
        models = {name: methods[name].init(engine, theta0) for name in kinds}
        equal = torch.full((owners, count), 1 / count, dtype=torch.float64)
        ones = torch.ones(count, dtype=torch.float64)
        return TracksState(
            theta=_mixtures(engine, models, equal, ones),
            models=_without_theta(models),
            judges={name: methods[name].init(engine, theta0) for name in kinds},
            weights=equal,
            population=equal[0],
            sharpness=ones,
            scores=torch.full((owners, count), torch.nan, dtype=torch.float64),
            anchor=equal,
            calm=torch.tensor(0),
            lost=torch.zeros(2, count, owners, dtype=torch.bool),
        )

    def admit(self, state: TracksState, clients: Tensor) -> TracksState:
        """Clients that join after judging is over get the population's weights."""
        methods = self.methods(len(state.weights))
        models = {name: methods[name].admit(own, clients) for name, own in state.models.items()}
        judges = {name: methods[name].admit(own, clients) for name, own in state.judges.items()}
        return state._replace(models=models, judges=judges)

    def step(self, engine: Engine, state: TracksState, round: int) -> tuple[TracksState, Info]:
        if self.evidence == "sums":
            state = _heard(engine, state)
        before = {
            name: own._replace(theta=member(state.theta, a))
            for a, (name, own) in enumerate(state.models.items())
        }
        some = (state.weights > 0).any(dim=0)
        used = [name for name, is_used in zip(before, some, strict=True) if is_used]
        models, infos, lost = self._train(engine, before, used, state.lost[0], round, whole=True)
        if state.calm < CALM:
            judges, _, theirs = self._train(
                engine, state.judges, list(before), state.lost[1], round, whole=False
            )
            state = self._judged(engine, state._replace(judges=judges), theirs)
        weights, active = state.weights, engine.active
        found = [(a, infos[name]) for a, name in enumerate(before) if name in infos]
        after = state._replace(
            theta=_mixtures(engine, models, weights, state.sharpness),
            models=_without_theta(models),
            lost=torch.stack([lost, state.lost[1]]),
        )
        return after, {
            "train_loss": average_loss([(a, info["train_loss"]) for a, info in found], weights),
            "graph": combined_graph([(a, info["graph"]) for a, info in found], weights, active),
            "tracks": dict(zip(before, weights.T, strict=True)),
            "population": dict(zip(before, state.population, strict=True)),
            "held_out": dict(zip(before, state.scores.T, strict=True)),
        }

    def _train(
        self,
        engine: Engine,
        states: Mapping[str, Any],
        names: list[str],
        lost: Tensor,
        round: int,
        whole: bool,
    ) -> tuple[dict[str, Any], dict[str, Info], Tensor]:
        """A round of the kinds named, on all samples (`whole`) or without those held out; and which
        clients' training broke in which kind."""
        after, infos, broken = dict(states), dict[str, Info](), list[Tensor]()
        methods = self.methods(engine.num_clients)
        for a, name in enumerate(states):
            view = engine.view(f"{'model' if whole else 'judge'} {name}", whole=whole)
            view.quarantine({i: LOST for i in range(len(lost[a])) if lost[a, i]})
            view.health.absent = engine.health.absent
            if name in names:
                after[name], infos[name] = methods[name].step(view, states[name], round)
            broken.append(_lost(view, engine))
        return after, infos, torch.stack(broken)

    def _judged(self, engine: Engine, state: TracksState, lost: Tensor) -> TracksState:
        """Weights by the held-out samples, and whether judging is now over."""
        judges = [judge.theta for judge in state.judges.values()]
        if self.evidence == "sums":
            seen = from_sums(engine, judges, state.population, self.pooling)
        else:
            seen = from_samples(engine, judges, self.pooling)
        never = state.scores[:, 0].isnan()
        told = (engine.active | never) & seen.weights.isfinite().all(dim=1)
        weights = torch.where(told[:, None], seen.weights, state.weights)
        moved = (weights - state.anchor).abs().sum(dim=1).mean() / 2
        is_calm = bool(moved <= MOVED)
        calm = state.calm + 1 if is_calm else torch.zeros_like(state.calm)
        if calm >= CALM:
            weights = _without_small(weights)
        return state._replace(
            weights=weights,
            population=seen.population,
            sharpness=seen.sharpness,
            scores=seen.scores.where(engine.active[:, None], state.scores),
            anchor=state.anchor if is_calm else weights,
            calm=calm,
            lost=torch.stack([state.lost[0], lost]),
        )


def _heard(engine: Engine, state: TracksState) -> TracksState:
    """What every owner says as a round begins: its weights, and for how long all have been calm.
    Owners that missed something may count otherwise; the median counts."""
    never = state.scores[:, 0].isnan()
    pi = state.population[None]
    pi = _without_small(pi) if state.calm >= CALM else pi
    mine = torch.where(never[:, None], pi, state.weights)
    told = told_by_all(engine, torch.cat([state.calm.expand(len(mine), 1), mine], dim=1))
    known = are_weights(told[:, 1:]) & told[:, 0].isfinite()
    if not bool(known.any()):
        return state
    weights, calm = state.weights.where(~known[:, None], told[:, 1:]), told[known, 0].median()
    if calm >= CALM > state.calm:
        weights = _without_small(weights)
    return state._replace(weights=weights, calm=calm.to(state.calm))


def _without_small(weights: Tensor) -> Tensor:
    """(K, A) as they are when judging is over."""
    weights = weights.where(weights >= LEAST, 0.0)
    return weights / weights.sum(dim=1, keepdim=True)


def _mixtures(
    engine: Engine, states: Mapping[str, Any], weights: Tensor, sharpness: Tensor
) -> Tree:
    log_weights = weights.clamp_min(1e-30).log()[engine.owned.cpu()]
    sharp = sharpness.expand_as(log_weights).contiguous()
    own = [t.to(engine.device, engine.dtype) for t in (log_weights, sharp)]
    return as_mixture([state.theta for state in states.values()], *own)


def _without_theta(states: Mapping[str, Any]) -> dict[str, Any]:
    """The states beside the models, which are in the mixtures."""
    return {name: state._replace(theta={}) for name, state in states.items()}


def _lost(view: Engine, engine: Engine) -> Tensor:
    """(K,) bool: clients whose training broke in this kind only."""
    lost = torch.zeros(engine.num_clients, dtype=torch.bool)
    lost[[client for client in view.health.reasons if client not in engine.health.reasons]] = True
    return lost
