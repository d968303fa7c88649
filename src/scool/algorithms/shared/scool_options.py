"""The options of SCooL: which go together, and what the rarer ones do that serve the theory."""

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from scool.algorithms.shared.sharing import choose, mix_and_move, per_client
from scool.contracts import Engine, Prior
from scool.errors import ConfigError, check_fields, require
from scool.graph.edges import Edges, Matrix
from scool.models.layers import is_statistic
from scool.priors.base import check_prior
from scool.types import Info, Tree

if TYPE_CHECKING:
    from scool.algorithms.scool import SCooL, SCooLState


def check_options(method: "SCooL") -> None:
    """Refuse options that are impossible or would be ignored.

    Raises:
        ConfigError: names the option, its value and the remedy.
    """
    check_fields(method)
    check_prior(method.prior)
    _check_numbers(method)
    if method.aggregate == "models":
        _check_models(method)
    if method.peers == "drawn":
        remedy = "peers = 'drawn' is for a graph that is sparse; give 0 or more"
        require(method.sparsify_round >= 0, "sparsify_round", method.sparsify_round, remedy)
        remedy = "nobody learns from peers' data here; leave it at 'best'"
        require(method.shares_data, "peers", method.peers, remedy)
    if method.cross_gradient == "exact":
        _check_exact(method)


def _check_numbers(method: "SCooL") -> None:
    for name in ("model_precision", "model_coupling"):
        require(getattr(method, name) >= 0, name, getattr(method, name), "give 0 or more")
    remedy = "give a fraction in (0, 1], or 0 for as many as the graph says"
    require(0 <= method.fraction <= 1, "fraction", method.fraction, remedy)
    remedy = "peers = 'drawn' needs to know how many: give a fraction in (0, 1]"
    require(method.fraction > 0 or method.peers == "best", "fraction", method.fraction, remedy)
    require(0 <= method.cross_ema < 1, "cross_ema", method.cross_ema, "give a number in [0, 1)")
    rounds = method.sparsify_round
    require(rounds >= -1, "sparsify_round", rounds, "give -1 or more")
    remedy = "give 4 or more, 0 for all peers, or -1 to choose by the number of clients"
    is_possible = method.candidates in (-1, 0) or method.candidates >= 4
    require(is_possible, "candidates", method.candidates, remedy)


def _check_models(method: "SCooL") -> None:
    """Checks of `aggregate`: averages of models instead of updates."""
    remedy = "this prior mixes models by itself; leave it at 'updates'"
    require(method.prior.mixes == "updates", "aggregate", method.aggregate, remedy)
    remedy = "only rows that sum to 1 can average models; leave weighting at 'row'"
    require(method.weighting == "row", "weighting", method.weighting, remedy)
    is_possible = method.cross_gradient == "local" and method.shares_data
    remedy = "without peers' data, or with exact gradients, leave it at 'updates'"
    require(is_possible, "aggregate", method.aggregate, remedy)


def _check_exact(method: "SCooL") -> None:
    """Checks of `cross_gradient = "exact"`."""
    if not method.shares_data:
        raise ConfigError(
            "cross_gradient = 'exact' is not possible in case 1.1: no model learns from a "
            "peer's data there. Leave it at 'local', or set likelihood to 'shared'"
        )
    if method.sgd.steps != 1:
        raise ConfigError(
            f"cross_gradient = 'exact' is not possible with steps = {method.sgd.steps}: an exact "
            "cross gradient is one of a single step. Give --steps 1, or cross_gradient local"
        )


def remark_of(method: "SCooL", rounds: int) -> str:
    """What was asked for and has no effect in so few rounds.

    >>> from scool.algorithms import SCooL
    >>> remark_of(SCooL(peers="drawn"), 10).partition(": ")[2]
    'run at least 12, or give sparsify_round = 8 or less'
    """
    last = rounds - 2  # the graph is sparse from the round after sparsify_round on
    if method.peers == "best" or method.sparsify_round <= last:
        return ""
    words = f"peers = {method.peers!r} has no effect in {rounds} rounds"
    remedy = f"run at least {method.sparsify_round + 2}"
    less = f", or give sparsify_round = {last} or less" if last >= 0 else ""
    return f"{words} with sparsify_round = {method.sparsify_round}: {remedy}{less}"


def verbs_of(method: "SCooL") -> frozenset[str]:
    """The verbs of the engine that the options need."""
    prior = cast("Prior[Any]", method.prior)
    found = {"train", "mix"}
    found |= {"cross_loss"} if method.shares_data else set()
    found |= {"gather", "total"} if getattr(prior, "reports", False) else set()
    found |= {"squared_distances"} if method.model_coupling else set()
    found |= {"cross_gradient"} if method.cross_gradient == "exact" else set()
    return frozenset(found)


def log_likelihoods(
    method: "SCooL", engine: Engine, models: Tree, loss: Edges
) -> tuple[Edges, Tensor | float]:
    r"""log P(D_j | theta_i) of the measured pairs, and of the uninformed predictor: the mean over
    the samples of j, or their sum. Case 1.2 x 2.1 adds the Laplacian prior's part of the logit,
    $-\frac{\lambda}{4} \|\theta_i - \theta_j\|^2$."""
    found, uniform = -loss.values, engine.uniform_log_lik
    if method.likelihood_reduction == "sum":
        samples = engine.sizes.double()
        found, uniform = found * samples[loss.j], uniform * samples
    if method.model_coupling:
        distances = engine.squared_distances(models)[loss.i, loss.j]
        found = found - 0.25 * method.model_coupling * distances
    return loss.on(found), uniform


def own_data_step(
    method: "SCooL", engine: Engine, state: "SCooLState", half: Tree, loss: Tensor, round: int
) -> tuple["SCooLState", Info]:
    """Case 1.1: peers' data are not used, and no peer is asked. With a prior of type 2.2 or 2.3 the
    graph sums out and local learning remains; Dirac's couples the models."""
    alone = Edges.loops(engine.num_clients, torch.ones_like(engine.active))
    graph: Matrix = alone.on(torch.ones(alone.count, dtype=torch.float64))
    theta = half
    if method.prior.mixes == "models":
        graph, shared = state.graph.w, method.shared(engine, state.theta)
        theta = half | mix_and_move(engine, graph, shared, half)
    theta = add_prior(method, engine, state.theta, theta, [], round)
    return state._replace(theta=theta), {"train_loss": loss, "graph": graph}


def exact_step(method: "SCooL", engine: Engine, theta: Tree, weights: Edges, round: int) -> Tree:
    r"""One step along $\sum_j \hat w_{ij} \nabla L(D_j; \theta_i)$, `cross_gradient="exact"`."""
    step = engine.cross_gradient(theta, weights, method.sgd, round)
    decay = method.sgd.weight_decay * weights.row_sums()[engine.owned.cpu()]
    rate = method.sgd.rate(round)
    shared = method.learned(engine, theta)
    return {n: t - rate * (step[n] + per_client(decay, t) * t) for n, t in shared.items()}


def laplacian(method: "SCooL", engine: Engine, theta: Tree, partners: Edges) -> list[Tree]:
    r"""$\lambda \sum_j \frac{w_{ij} + w_{ji}}{2} (\theta_i - \theta_j)$, case 1.2 x 2.1."""
    if not method.model_coupling:
        return []
    w = partners.take(~partners.is_loop)
    i, j, half = torch.cat([w.i, w.j]), torch.cat([w.j, w.i]), w.values / 2
    mutual = Edges.gathered(len(w), i, j, method.model_coupling * torch.cat([half, half]))
    degree = mutual.row_sums()[engine.owned.cpu()]
    neighbours = engine.mix(mutual, theta)
    return [{n: per_client(degree, t) * t - neighbours[n] for n, t in theta.items()}]


def add_prior(
    method: "SCooL", engine: Engine, before: Tree, theta: Tree, pulls: list[Tree], round: int
) -> Tree:
    r"""$\theta_i \leftarrow \theta_i - \eta S G_i$ with the gradient of the prior at `before`,
    which is $\theta^t$: $\lambda \theta_i$ of the Gaussian and the pulls of the graph. A client in
    quarantine keeps the model it came with."""
    if method.model_precision:
        learned = {n: t for n, t in before.items() if not is_statistic(n)}
        pulls = [{n: method.model_precision * t for n, t in learned.items()}, *pulls]
    steps = method.sgd.steps_per_round(engine.sizes) * engine.active
    length = method.sgd.rate(round) * steps[engine.owned.cpu()]
    for pull in pulls:
        theta = theta | {n: theta[n] - per_client(length, g) * g for n, g in pull.items()}
    active = engine.active
    return theta if bool(active.all()) else choose(engine, active, theta, before)
