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
from scool.algorithms.shared.drawn_kind import Drawn
from scool.algorithms.shared.evidence import (
    are_weights,
    from_samples,
    from_sums,
    told_by_all,
)
from scool.algorithms.shared.held_out import classes_held
from scool.algorithms.shared.rate import find_rate
from scool.algorithms.shared.settling import OVER, needed_calm, settled, without_small
from scool.algorithms.shared.side_by_side import (
    average_loss,
    combined_graph,
    without_broken,
)
from scool.contracts import Engine, Meets, Method
from scool.data.federation import Task
from scool.errors import check_fields, require, unknown
from scool.graph.growing import laid_over
from scool.health import Reason
from scool.learning.local_sgd import LocalSGD
from scool.models import parameters_of
from scool.models.mixture import CLASSES, LOG_WEIGHTS, SHARPNESS, TRUST, Mixture, as_mixture, member
from scool.priors import SBM, AnyPrior
from scool.types import Info, Params, Tree

KINDS = ("alone", "body", "graph", "common", "drawn")
LOST = Reason("training", "loss or model in an earlier round")


class TracksState(NamedTuple):
    theta: Tree  # the mixtures; member a is the model of kind a, trained on all samples
    models: Mapping[str, Any]  # the state of each kind beside its models, which are in theta
    judges: Mapping[str, Any]  # the same kinds again, trained without the held-out samples
    weights: Tensor  # (K, A) omega
    population: Tensor  # (A,) pi
    sharpness: Tensor  # (A,) beta
    trust: Tensor  # (A,) lambda
    scores: Tensor  # (K, A) of the judges on the held-out samples; NaN: never judged
    anchor: Tensor  # (K, A) omega when it last moved
    calm: Tensor  # () rounds since then; OVER: judging is over
    rate: Tensor  # () the learning rate; 0: still to be found
    lost: Tensor  # (2, A, K) bool: clients whose training broke, of the models and of the judges


@final
@dataclass(frozen=True)
class Tracks(Method[TracksState]):
    r"""Kinds of cooperation, trained side by side, and averaged per owner by evidence.

    The kinds: `alone` (local training), `body` (a shared body under a personal head, FedRep),
    `graph` (SCooL with a prior of the graph), `common` (one model for all, FedAvg), and if asked
    for `drawn` (SCooL with peers drawn by the graph, slow momentum and an average of models). Which
    of them suits owner i is a latent variable: each sample is explained by one of the owner's
    models, $z_{is} \sim \mathrm{Cat}(\omega_i)$ with $\omega_i \sim \mathrm{Dir}(1 + \kappa\pi)$,
    and $\pi$, what suits the population, is shared ([TRACK-r], [TRACK-pi], [TRACK-w]). Its answer:
    $p_i(y \mid x) = \sum_a \omega_{ia}\, p(y \mid x; \theta_{ia})$.

    The evidence must come from samples that a model has not seen. So each kind is trained twice:
    the judges without a share of the samples, which they are judged by; the models that answer
    with all samples, so that none is lost. When the weights have settled, judging is over: the
    judges and the kinds that nobody uses train no more. With `evidence="sums"` no number about a
    single sample leaves its owner: owners tell sums, and $\pi$ takes one step of EM in a round. A
    kind in which an owner's training breaks has no weight there.

    By kind, a round's record has in `tracks` the weights (K,), in `population` $\pi$, in `held_out`
    the scores (K,) of the judges; `graph` is $\sum_a \omega_{ia} w^a_{ij}$.
    """

    learns_graph = True
    trains_theta = False
    finds_rate = True
    judges_all = False

    kinds: str = "alone,body,graph,common"
    """The kinds of cooperation, separated by commas."""
    prior: AnyPrior = field(default_factory=SBM)
    """The prior of the graph, for the kinds `graph` and `drawn`."""
    sgd: LocalSGD = field(default_factory=lambda: LocalSGD(lr=0.0))
    """Of all kinds. With a rate of 0, the default, owners find one before the first round."""
    fraction: float = 0.0
    """Peers kept by the kind `graph`, as a fraction of all clients; 0: as many as the graph says
    (`drawn`: a tenth, at least ten)."""
    pooling: float = 20.0
    """kappa: the number of an owner's samples that weigh as much as what suits the population."""
    validation: float = 0.2
    """Share of the training samples set aside to judge by, if there are no validation data."""
    aggregate: Literal["updates", "models"] = "updates"
    """What the kind `graph` averages."""
    drawn: Drawn = field(default_factory=Drawn)
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
        """The verbs of all kinds, and those that judge them and find a rate."""
        own = frozenset({"judge", "view"})
        if self.evidence == "sums" or not self.sgd.lr:
            own |= {"train", "gather"}
        return own.union(*(kind.verbs for kind in self.methods().values()))

    @property
    def averages_updates(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return next(filter(None, (kind.averages_updates for kind in self.methods().values())), "")

    @property
    def stays(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return next(filter(None, (kind.stays for kind in self.methods().values())), "")

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.kinds.split(",") if name.strip())

    def methods(self, clients: int = 100, rate: float = 0.0) -> dict[str, Method[Any]]:
        """The method of each kind, with the rate that was found. The head of FedRep gets as many
        passes as the body."""
        sgd = replace(self.sgd, lr=rate) if rate else self.sgd
        tenth = min(1.0, max(0.1, 10 / clients))
        graph = SCooL(prior=self.prior, sgd=sgd, fraction=self.fraction, aggregate=self.aggregate)
        every: dict[str, Method[Any]] = {
            "alone": LocalOnly(sgd=sgd),
            "body": FedRep(sgd=sgd, head_epochs=max(1, sgd.epochs)),
            "graph": graph,
            "common": FedAvg(sgd=sgd),
            "drawn": self.drawn.method(replace(graph, fraction=self.fraction or tenth)),
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
        state = TracksState(
            theta={},
            models=_without_theta(models),
            judges={name: methods[name].init(engine, theta0) for name in kinds},
            weights=equal,
            population=equal[0],
            sharpness=ones,
            trust=torch.zeros_like(ones),
            scores=torch.full((owners, count), torch.nan, dtype=torch.float64),
            anchor=equal,
            calm=torch.tensor(0),
            rate=torch.tensor(self.sgd.lr, dtype=torch.float64),
            lost=torch.zeros(2, count, owners, dtype=torch.bool),
        )
        classes = classes_held(engine, models[kinds[0]].theta)[engine.owned.cpu()]
        return state._replace(theta=_mixtures(engine, models, state, classes))

    def admit(self, state: TracksState, clients: Tensor) -> TracksState:
        """Clients that join after judging is over get the population's weights."""
        methods = self.methods(len(state.weights))
        models = {name: methods[name].admit(own, clients) for name, own in state.models.items()}
        judges = {name: methods[name].admit(own, clients) for name, own in state.judges.items()}
        return state._replace(models=models, judges=judges)

    def grow(self, state: TracksState, fresh: TracksState) -> TracksState:
        """Newcomers count with the population's weights until they tell their own."""
        methods, late = self.methods(len(fresh.weights)), slice(len(state.weights), None)
        models = {n: methods[n].grow(own, fresh.models[n]) for n, own in state.models.items()}
        judges = {n: methods[n].grow(own, fresh.judges[n]) for n, own in state.judges.items()}
        found = laid_over(fresh, state._replace(models={}, judges={}))
        pi = _of_newcomers(state)
        found.weights[late], found.anchor[late] = pi, pi
        return found._replace(models=models, judges=judges)

    def step(self, engine: Engine, state: TracksState, round: int) -> tuple[TracksState, Info]:
        if self.evidence == "sums":
            state = _heard(engine, state)
        if not state.rate:
            theta = next(iter(state.judges.values())).theta
            rate = find_rate(engine, theta, self.sgd)
            state = state._replace(rate=torch.tensor(rate, dtype=torch.float64))
        before = {
            name: own._replace(theta=member(state.theta, a))
            for a, (name, own) in enumerate(state.models.items())
        }
        shares = state.weights.amax(dim=0)
        used = [name for name, share in zip(before, shares, strict=True) if share > 0]
        models, infos, lost = self._train(engine, state, before, used, round, whole=True)
        if state.calm < OVER:
            judges, _, theirs = self._train(
                engine, state, state.judges, list(before), round, whole=False
            )
            state = self._judged(engine, state._replace(judges=judges), theirs, round)
        found = [(a, infos[name]) for a, name in enumerate(before) if name in infos]
        losses = {a: info["train_loss"] for a, info in found}
        weights = without_broken(state.weights, lost, losses, -engine.uniform_log_lik)
        state, active = state._replace(weights=weights), engine.active
        after = state._replace(
            theta=_mixtures(engine, models, state, state.theta[CLASSES]),
            models=_without_theta(models),
            lost=torch.stack([lost, state.lost[1]]),
        )
        return after, {
            "rate": state.rate,
            "train_loss": average_loss([(a, info["train_loss"]) for a, info in found], weights),
            "graph": combined_graph([(a, info["graph"]) for a, info in found], weights, active),
            "tracks": dict(zip(before, weights.T, strict=True)),
            "population": dict(zip(before, state.population, strict=True)),
            "held_out": dict(zip(before, state.scores.T, strict=True)),
        }

    def _train(
        self,
        engine: Engine,
        state: TracksState,
        states: Mapping[str, Any],
        names: list[str],
        round: int,
        whole: bool,
    ) -> tuple[dict[str, Any], dict[str, Info], Tensor]:
        """A round of the kinds named, on all samples (`whole`) or without those held out; and which
        clients' training broke in which kind."""
        after, infos, broken = dict(states), dict[str, Info](), list[Tensor]()
        methods = self.methods(engine.num_clients, float(state.rate))
        lost = state.lost[0 if whole else 1]
        for a, name in enumerate(states):
            view = engine.view(f"{'model' if whole else 'judge'} {name}", whole=whole)
            view.quarantine({i: LOST for i in range(len(lost[a])) if lost[a, i]})
            view.health.absent = engine.health.absent
            if name in names:
                after[name], infos[name] = methods[name].step(view, states[name], round)
            broken.append(_lost(view, engine))
        return after, infos, torch.stack(broken)

    def _judged(self, engine: Engine, state: TracksState, lost: Tensor, round: int) -> TracksState:
        """Weights by the held-out samples, and whether judging is now over."""
        judges = [judge.theta for judge in state.judges.values()]
        if self.evidence == "sums":
            seen = from_sums(engine, judges, state.population, self.pooling)
        else:
            seen = from_samples(engine, judges, self.pooling)
        never = state.scores[:, 0].isnan()
        told = (engine.active | never) & seen.weights.isfinite().all(dim=1)
        weights = torch.where(told[:, None], seen.weights, state.weights)
        memory = self.drawn.drawn_average if "drawn" in self._names else 0.0
        needed = needed_calm(round, memory)
        weights, anchor, calm = settled(weights, state.anchor, state.calm, needed)
        return state._replace(
            weights=weights,
            population=seen.population,
            sharpness=seen.sharpness,
            trust=seen.trust,
            scores=seen.scores.where(engine.active[:, None], state.scores),
            anchor=anchor,
            calm=calm,
            lost=torch.stack([state.lost[0], lost]),
        )


def _heard(engine: Engine, state: TracksState) -> TracksState:
    """What every owner says as a round begins: its learning rate, for how long all have been calm,
    and its weights. Owners that missed something may count otherwise; the median counts."""
    never = state.scores[:, 0].isnan()
    mine = torch.where(never[:, None], _of_newcomers(state), state.weights)
    alike = torch.stack([state.rate, state.calm.double()]).expand(len(mine), 2)
    told = told_by_all(engine, torch.cat([alike, mine], dim=1))
    known = are_weights(told[:, 2:]) & told[:, :2].isfinite().all(dim=1)
    if not bool(known.any()):
        return state
    rates = told[known & (told[:, 0] > 0), 0]
    if len(rates):
        state = state._replace(rate=rates.median())
    weights, calm = state.weights.where(~known[:, None], told[:, 2:]), told[known, 1].median()
    if calm >= OVER > state.calm:
        weights = without_small(weights)
    return state._replace(weights=weights, calm=calm.to(state.calm))


def _of_newcomers(state: TracksState) -> Tensor:
    """(1, A) the weights of owners that were never judged."""
    pi = state.population[None]
    return without_small(pi) if state.calm >= OVER else pi


def _mixtures(
    engine: Engine, models: Mapping[str, Any], state: TracksState, classes: Tensor
) -> Tree:
    """Of the clients held here, who hold these classes (n, C)."""
    weights = state.weights.clamp_min(1e-30).log()[engine.owned.cpu()]
    alike = {SHARPNESS: state.sharpness, TRUST: state.trust}
    own = {name: t.expand_as(weights).contiguous() for name, t in alike.items()}
    own |= {LOG_WEIGHTS: weights, CLASSES: classes}
    placed = {name: t.to(engine.device, engine.dtype) for name, t in own.items()}
    return as_mixture([model.theta for model in models.values()], **placed)


def _without_theta(states: Mapping[str, Any]) -> dict[str, Any]:
    """The states beside the models, which are in the mixtures."""
    return {name: state._replace(theta={}) for name, state in states.items()}


def _lost(view: Engine, engine: Engine) -> Tensor:
    """(K,) bool: clients whose training broke in this kind only."""
    lost = torch.zeros(engine.num_clients, dtype=torch.bool)
    lost[[client for client in view.health.reasons if client not in engine.health.reasons]] = True
    return lost
