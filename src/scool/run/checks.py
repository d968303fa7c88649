"""Checks of a model and a method before or right after their first use, and messages about clients
whose numbers are not finite."""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from scool.contracts import Engine, Method, OwnMethod
from scool.data.federation import Federation, Task
from scool.errors import ConfigError, ModelError, QuarantineError, first_few, require
from scool.graph.edges import SMALL, Edges, Matrix
from scool.graph.mixing import edges_without, without
from scool.health import BROKEN_DATA, Reason, not_finite
from scool.learning.local_sgd import LocalSGD
from scool.types import Info, Params

PAGE = "see docs/own-prior-or-method.md"
SLACK = 1e-3  # how far a row may be from 1: sums of many float32 weights are inexact


def checked_model(build: Any) -> Callable[[], nn.Module]:
    """A function that builds a module, or raises where it builds something else.

    Raises:
        ConfigError: it is not a function.
    """
    remedy = "give a name, a ModelConfig, an nn.Module, or a function that builds one"
    require(callable(build), "model", build, remedy)

    def checked() -> nn.Module:
        try:
            inspect.signature(build).bind()
        except TypeError as error:
            raise ModelError(f"model cannot be called without arguments ({error})") from error
        except ValueError:  # some functions written in C have no signature
            pass
        module = build()
        if not isinstance(module, nn.Module):
            kind = type(module).__name__
            raise ModelError(f"model builds a {kind}: give a function that returns an nn.Module")
        return module

    return checked


@final
class Adopted(Method[Any]):
    """A person's own class that does not inherit from `Method`: its `init` and `step`, and what it
    declares of the rest; the defaults where it says nothing."""

    def __init__(self, own: Any) -> None:
        self.own = own
        for name in Method.__annotations__:
            if hasattr(own, name) and (name != "sgd" or isinstance(own.sgd, LocalSGD)):
                setattr(self, name, getattr(own, name))

    def init(self, engine: Engine, theta0: Params) -> Any:
        return self.own.init(engine, theta0)

    def step(self, engine: Engine, state: Any, round: int) -> tuple[Any, Info]:
        return self.own.step(engine, state, round)

    def admit(self, state: Any, clients: Tensor) -> Any:
        return self.own.admit(state, clients) if hasattr(self.own, "admit") else state

    def grow(self, state: Any, fresh: Any) -> Any:
        is_said = hasattr(self.own, "grow")
        return self.own.grow(state, fresh) if is_said else super().grow(state, fresh)

    def complete(self) -> Self:
        return type(self)(self.own.complete()) if hasattr(self.own, "complete") else self

    def remark(self, rounds: int) -> str:
        return str(self.own.remark(rounds)) if hasattr(self.own, "remark") else ""

    def predictor(self, module: nn.Module, task: Task) -> nn.Module:
        own = getattr(self.own, "predictor", None)
        return module if own is None else own(module, task)

    @property
    def plain(self) -> Any:
        return self.own


def as_method(method: Method[Any] | OwnMethod) -> Method[Any]:
    """The method itself, or one around an object that has `init` and `step` but does not inherit
    from `Method`. Only this place looks at what such an object offers.

    Raises:
        ConfigError: a part is missing.
    """
    if isinstance(method, Method):
        return method
    remedy = "give a method, e.g. scool.SCooL() or scool.LocalOnly()"
    is_method = hasattr(method, "init") and not isinstance(method, type)
    require(is_method, "algorithm", method, remedy)
    if not hasattr(method, "step"):
        raise ConfigError(f"{type(method).__name__} has no method `step`: {PAGE}")
    return Adopted(method)


def check_rate(method: Method[Any]) -> None:
    """Refuse a rate of 0 where the method does not find one.

    Raises:
        ConfigError: names the method and what to give.
    """
    name = type(method.plain).__name__
    remedy = f"{name} finds no learning rate by itself, as scool does: give a positive one"
    require(method.sgd.lr > 0 or method.finds_rate, "lr", method.sgd.lr, remedy)


def check_verbs(method: Method[Any], engine: Engine) -> None:
    """Refuse a method that an engine cannot carry out, before the first round.

    Raises:
        ConfigError: names the verbs that are missing.
    """
    if missing := method.verbs - engine.offers:
        raise ConfigError(
            f"{type(method.plain).__name__} is not possible here: its step uses "
            f"{', '.join(sorted(missing))}, which {type(engine).__name__} does not offer. Choose "
            "another method, or run it in one program (`scool run`), which offers all"
        )


def completed(method: Any) -> Any:
    """A method with the contents of the files that its options name."""
    whole = as_method(method).complete()
    return whole.own if isinstance(whole, Adopted) else whole


def checked_step(
    method: Method[Any], outcome: Any, active: Tensor
) -> tuple[Any, Mapping[str, Any]]:
    """What a step of the method gave back: the next state, and Info of the round.

    Raises:
        ConfigError: it is something else, or the weights of an active client are not possible.
    """
    name = type(method.plain).__name__
    is_pair = isinstance(outcome, tuple) and len(outcome) == 2 and isinstance(outcome[1], Mapping)
    if not is_pair:
        kind = type(outcome).__name__
        raise ConfigError(f"{name}.step gave a {kind}: return (state, info); {PAGE}")
    state, info = outcome
    if not hasattr(state, "theta"):
        kind = type(state).__name__
        raise ConfigError(f"the state of {name} is a {kind} without `theta`, the models; {PAGE}")
    if "train_loss" not in info:
        raise ConfigError(f"{name}.step gave no info['train_loss'], the losses of training; {PAGE}")
    graph, size = info.get("graph"), (len(active), len(active))
    if not isinstance(graph, Tensor | Edges) or tuple(graph.shape) != size:
        found = tuple(graph.shape) if isinstance(graph, Tensor | Edges) else graph
        raise ConfigError(
            f"{name}.step gave info['graph'] = {found!r}: give the weights {size} that it mixed "
            f"with, the identity where it does not mix; {PAGE}"
        )
    _check_graph(name, graph, active, method.averages)
    return state, info


def _check_graph(name: str, graph: Matrix, active: Tensor, averages: bool) -> None:
    """Refuse weights that are not finite, or are not those of averages where these are promised."""
    found = f"{name}.step gave info['graph']"
    sums, least = _sums_and_least(graph)
    sums = sums[active]
    if not bool(sums.isfinite().all()):
        raise ConfigError(f"{found} with weights that are not finite: give finite ones; {PAGE}")
    if not averages or not len(sums):
        return
    lowest = float(least[active].min())
    total = float(sums[(sums - 1).abs().argmax()])
    if lowest < -SLACK or abs(total - 1) > SLACK:
        what = f"a weight of {lowest:.4g}" if lowest < -SLACK else f"a row that sums to {total:.4g}"
        raise ConfigError(
            f"{found} with {what}: give weights of 0 or more whose rows sum to 1, or put "
            f"`averages = False` into the class if it takes other sums; {PAGE}"
        )


def _sums_and_least(graph: Matrix) -> tuple[Tensor, Tensor]:
    """(K,) the sum of each row and its smallest weight."""
    if isinstance(graph, Edges):
        least = torch.zeros(len(graph), dtype=torch.float64)
        least.scatter_reduce_(0, graph.i, graph.values.double(), "amin")
        return graph.row_sums(graph.values.double()), least
    return graph.sum(dim=1, dtype=torch.float64).cpu(), graph.amin(dim=1).cpu()


FEW = 100
"""Training samples per client below which the paper's settings learn slowly."""


def remarks(method: Method[Any], rounds: int, federation: Federation) -> list[str]:
    """What was asked for and has no effect, in the words of the method and of its optimiser; and
    defaults that do not suit the data."""
    found = (method.sgd.remark, method.remark(rounds), _on_small_data(method, federation))
    return [words for words in found if words]


def _on_small_data(method: Method[Any], federation: Federation) -> str:
    samples = int(federation.train.sizes.median())
    if samples >= FEW or method.sgd != LocalSGD():
        return ""
    return (
        f"clients have {samples} training samples (median), and LocalSGD(), the default, has the "
        "paper's settings for images, which learn slowly from so few: try "
        "sgd=scool.LocalSGD(lr=0.1, batch_size=8), see Small data in docs/index.md"
    )


def check_anybody(engine: Engine) -> None:
    """Stop when there is nobody left to learn."""
    if not bool(engine.health.healthy.any()):
        why = ", ".join(sorted(set(engine.health.words.values())))
        raise QuarantineError(
            f"all {engine.num_clients} clients are in quarantine (non-finite {why}): nobody is "
            "left to learn. Standardise inputs and targets, lower lr, or clean the data"
        )


def warn_quarantined(
    row: Mapping[str, Any], before: Sequence[Mapping[str, Any]], federation: Federation
) -> None:
    """Warn about clients newly left out, where no recorder shows them."""
    known = before[-1]["quarantined"] if before else {}
    for client, why in row["quarantined"].items():
        if client not in known:
            when, remedy = f"after round {row['round'] + 1}", "Lower lr, or look at its data"
            if Reason.read(why).code == "data":
                when, remedy = "from the start", "Fix its data"
            name = federation.client_name(int(client))
            words = f"client {name} is left out {when}: non-finite {why}. {remedy}"
            warnings.warn(words, stacklevel=4)


def as_mixed(info: Mapping[str, Any], active: Tensor) -> dict[str, Any]:
    """Nobody mixes what clients in quarantine have, whatever weights a method gives them. (One that
    mixes before it trains did so a last time in the round in which a client breaks.) The graph of
    few clients becomes a matrix, which is easier for people and records."""
    graph = info["graph"]
    if not isinstance(graph, Edges):
        return {**info, "graph": without(graph, active.to(graph.device))}
    graph = edges_without(graph, active)
    return {**info, "graph": graph.dense() if len(graph) <= SMALL else graph}


def check_test(federation: Federation, strict: bool, is_first: bool) -> None:
    """Warn about clients whose test data are not finite; they get no score.

    Raises:
        QuarantineError: there are some, and the run is strict.
    """
    broken = (~federation.test.is_finite()).nonzero()[:, 0].tolist()
    if broken and strict:
        raise not_finite(broken[0], f"test {BROKEN_DATA.words}")
    if broken and is_first:
        warnings.warn(
            f"{len(broken)} of {federation.num_clients} clients have non-finite test "
            f"{BROKEN_DATA.words} (clients {first_few(broken)}): they get no score. Fix these "
            "samples, or leave them out",
            stacklevel=4,
        )
