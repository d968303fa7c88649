"""Records of older versions: what options were called, and which are no options any more."""

from collections.abc import Mapping
from typing import Any

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
        if _is_gone(path, values) and value == GONE[path]:
            continue
        if isinstance(value, Mapping):
            value = modern(value, f"{path}.")
        found[RENAMED.get(path, path).rpartition(".")[2]] = value
    return found


def _is_gone(path: str, values: Mapping[str, Any]) -> bool:
    """Whether it is an option of GONE. A method without a prior is not SCooL, and may have one of
    that name."""
    return path in GONE and ("prior" in values or not path.startswith("algorithm."))


def check_gone(values: Mapping[str, Any]) -> None:
    """Refuse a record of a run that an option made which is gone.

    Raises:
        ConfigError: names it.
    """
    for path in GONE:
        part, _, name = path.rpartition(".")
        options = values.get(part, {})
        if name in options and _is_gone(path, options):
            raise ConfigError(
                f"{name} = {options[name]!r} is not possible: scool had this option for a while "
                "and has it no more. Repeat the run without it, or with the version that made it"
            )
