"""Records of older versions: what options were called, and which are no options any more."""

from collections.abc import Mapping
from typing import Any

from scool.errors import ConfigError

RENAMED = {
    "algorithm.precision": "algorithm.model_precision",
    "algorithm.prior.optimizer": "algorithm.prior.prior_optimizer",
    "settings.average": "settings.model_average",
}
GONE = {"algorithm.anneal": 0, "algorithm.cross_when": "after", "algorithm.validation": 0}
"""Options that SCooL had for a while, with the values that did nothing."""


def modern(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The options of a record under the names that they have now.

    >>> modern({"settings": {"average": 0.9}, "algorithm": {"prior": {}, "anneal": 0}})
    {'settings': {'model_average': 0.9}, 'algorithm': {'prior': {}}}
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        if path in GONE and value == GONE[path] and _is_scool(values):
            continue
        if isinstance(value, Mapping):
            value = modern(value, f"{path}.")
        found[RENAMED.get(path, path).rpartition(".")[2]] = value
    return found


def _is_scool(algorithm: Mapping[str, Any]) -> bool:
    """Other methods have no prior, and may have an option of the same name."""
    return "prior" in algorithm


def check_gone(values: Mapping[str, Any]) -> None:
    """Refuse a record of a run that an option made which is gone.

    Raises:
        ConfigError: names it.
    """
    algorithm = values["algorithm"]
    for path in GONE if _is_scool(algorithm) else ():
        name = path.rpartition(".")[2]
        if name in algorithm:
            raise ConfigError(
                f"{name} = {algorithm[name]!r} is not possible: SCooL had this option for a while "
                "and has it no more. Repeat the run without it, or with the version that made it"
            )
