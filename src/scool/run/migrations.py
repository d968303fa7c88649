"""Records of older versions: what options were called, and which are no options any more."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from scool.errors import ConfigError

RENAMED = {
    "algorithm.precision": "algorithm.model_precision",
    "algorithm.prior.optimizer": "algorithm.prior.prior_optimizer",
    "settings.average": "settings.model_average",
}
GONE = {
    "algorithm.anneal": 0,
    "algorithm.cross_when": "after",
    "algorithm.validation": 0,
    "settings.personal_pull": 0,
    "between_rounds.personal_pull": 0,  # the same, in what tells a run from another
}
"""Options that SCooL (`algorithm`) or any run had for a while, with the values that did nothing."""


def modern(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The options of a record under the names that they have now.

    >>> modern({"settings": {"average": 0.9}, "algorithm": {"prior": {}, "anneal": 0}})
    {'settings': {'model_average': 0.9}, 'algorithm': {'prior': {}}}
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        is_known = _is_known(path, values)
        if is_known and path in GONE and value == GONE[path]:
            continue
        if isinstance(value, Mapping):
            value = modern(value, f"{path}.")
        found[(RENAMED.get(path, path) if is_known else path).rpartition(".")[2]] = value
    return found


def _is_known(path: str, values: Mapping[str, Any]) -> bool:
    """Whether the tables above speak of this option: those of `algorithm` are SCooL's, which has a
    prior; another method may have one of that name."""
    return path.rpartition(".")[0] != "algorithm" or "prior" in values


def check_gone(values: Mapping[str, Any]) -> None:
    """Refuse a record of a run that an option made which is gone.

    Raises:
        ConfigError: names it.
    """
    for path in GONE:
        part, _, name = path.rpartition(".")
        options = values.get(part, {})
        if name in options and _is_known(path, options):
            raise ConfigError(
                f"{name} = {options[name]!r} is not possible: scool had this option for a while "
                "and has it no more. Repeat the run without it, or with the version that made it"
            )


def modern_state(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a checkpoint under the names that they have now. Slow momentum and averages
    together once were one wrapper, not one around the other.

    >>> old = dict.fromkeys(["theta/b", "method/theta/b", "method/graph/w", "velocity/b"])
    >>> list(modern_state(old))
    ['theta/b', 'method/theta/b', 'method/method/graph/w', 'method/velocity/b']
    """
    is_old = any(n.startswith("velocity/") for n in tensors)
    is_old = is_old and any(n.startswith("method/theta/") for n in tensors)
    return {_inside(name) if is_old else name: t for name, t in tensors.items()}


def _inside(name: str) -> str:
    moves = name.startswith(("method/", "velocity/")) and not name.startswith("method/theta/")
    return f"method/{name}" if moves else name


def older_names(names: frozenset[str]) -> frozenset[str]:
    """Names of tensors, and those that `modern_state` makes them of."""
    inside = ("method/method/", "method/velocity/")
    return names | {name.removeprefix("method/") for name in names if name.startswith(inside)}
