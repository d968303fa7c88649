"""What a person's own model or method must be, said before or right after its first use."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from scool.contracts import Engine, Method, OwnMethod
from scool.errors import ConfigError, ModelError, require
from scool.graph.edges import Edges, Matrix
from scool.learning.local_sgd import LocalSGD
from scool.types import Info, Params

PAGE = "see docs/own-prior-or-method.md"
SLACK = 1e-3  # by which a row may miss 1: sums of many float32 weights are inexact


def checked_model(build: Any) -> Callable[[], nn.Module]:
    """A function that builds a module, and says so where it does not.

    Raises:
        ConfigError: it is no function.
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

    def complete(self) -> Self:
        return type(self)(self.own.complete()) if hasattr(self.own, "complete") else self

    def remark(self, rounds: int) -> str:
        return str(self.own.remark(rounds)) if hasattr(self.own, "remark") else ""

    @property
    def plain(self) -> Any:
        return self.own


def as_method(method: Method[Any] | OwnMethod) -> Method[Any]:
    """The method itself, or one around an object that has `init` and `step` but does not inherit
    from `Method`. No other place asks what such an object has.

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


def remarks(method: Method[Any], rounds: int) -> list[str]:
    """What was asked for and has no effect, in the words of the method and of its optimiser."""
    return [words for words in (method.sgd.remark, method.remark(rounds)) if words]
