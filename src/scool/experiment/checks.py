"""What a person's own model or method must be, said before or right after its first use."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from scool.errors import ConfigError, ModelError, require

PAGE = "see docs/own-prior-or-method.md"


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


def checked_step(name: str, outcome: Any, num_clients: int) -> tuple[Any, Mapping[str, Any]]:
    """What a step of the method of that name gave back: the next state, and Info of the round.

    Raises:
        ConfigError: it is something else.
    """
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
    graph, size = info.get("graph"), (num_clients, num_clients)
    if not isinstance(graph, Tensor) or tuple(graph.shape) != size:
        found = tuple(graph.shape) if isinstance(graph, Tensor) else graph
        raise ConfigError(
            f"{name}.step gave info['graph'] = {found!r}: give the weights {size} that it mixed "
            f"with, the identity where it does not mix; {PAGE}"
        )
    return state, info


def remarks(algorithm: Any, rounds: int) -> list[str]:
    """What was asked for and has no effect, in the words of the method and of its optimiser."""
    of_sgd = getattr(getattr(algorithm, "sgd", None), "remark", "")
    remark = getattr(algorithm, "remark", None)
    of_method = str(remark(rounds)) if callable(remark) else ""
    return [words for words in (of_sgd, of_method) if words]
