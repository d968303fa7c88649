"""Functions that an owner names as `module:function`: in a file of its folder, or in a package."""

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scool.errors import ConfigError


def function_of(name: str, folder: Path, what: str) -> Callable[..., Any]:
    """What `module:function` names; `what` is the option that says so.

    Raises:
        ConfigError: it has another form, or is not there.
    """
    module, colon, function = name.partition(":")
    if not (colon and module and function):
        raise ConfigError(f"{what} = {name!r} is not possible: give module:function")
    where = str(folder.absolute())
    sys.path.insert(0, where)
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{what} = {name!r} cannot be loaded ({error}): is there a {module}.py in {folder}?"
        ) from error
    finally:
        sys.path.remove(where)
    if not callable(found):
        raise ConfigError(f"{what} = {name!r} is not a function")
    return found


def digest_of_code(function: Callable[..., Any]) -> str:
    """SHA-256 of the file that a function is in."""
    file = inspect.getsourcefile(function)
    assert file is not None
    return f"sha256:{hashlib.sha256(Path(file).read_bytes()).hexdigest()}"
