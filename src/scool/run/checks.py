"""What a person's own model or method must be, said before or right after its first use."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from scool.algorithms.between_rounds import unwrapped
from scool.errors import ConfigError, ModelError, require
from scool.graph.edges import Edges, Matrix

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


def check_method(algorithm: Any) -> None:
    """Refuse what is no method.

    Raises:
        ConfigError: a part is missing.
    """
    remedy = "give a method, e.g. scool.SCooL() or scool.LocalOnly()"
    is_method = hasattr(algorithm, "init") and not isinstance(algorithm, type)
    require(is_method, "algorithm", algorithm, remedy)
    if not hasattr(algorithm, "step"):
        raise ConfigError(f"{type(algorithm).__name__} has no method `step`: {PAGE}")


def checked_step(method: Any, outcome: Any, active: Tensor) -> tuple[Any, Mapping[str, Any]]:
    """What a step of the method gave back: the next state, and Info of the round.

    Raises:
        ConfigError: it is something else, or the weights of an active client are not possible.
    """
    method = unwrapped(method)
    name = type(method).__name__
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
    _check_graph(name, graph, active, getattr(method, "averages", True))
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


def remarks(algorithm: Any, rounds: int) -> list[str]:
    """What was asked for and has no effect, in the words of the method and of its optimiser."""
    of_sgd = getattr(getattr(algorithm, "sgd", None), "remark", "")
    remark = getattr(algorithm, "remark", None)
    of_method = str(remark(rounds)) if callable(remark) else ""
    return [words for words in (of_sgd, of_method) if words]
