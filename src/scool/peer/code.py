"""Functions that an owner names as `module:function`: in a file of its folder, or in a package."""

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scool.errors import ConfigError, require


def function_of(name: str, folder: Path, what: str) -> Callable[..., Any]:
    """What `module:function` names; `what` is the option that says so.

    Raises:
        ConfigError: it has another form, or is not there.
    """
    require(isinstance(name, str), what, name, "give module:function")
    module, colon, function = name.partition(":")
    if not (colon and module and function):
        raise ConfigError(f"{what} = {name!r} is not possible: give module:function")
    where = str(folder.absolute())
    sys.path.insert(0, where)
    try:
        found = getattr(importlib.import_module(module), function)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ConfigError(
            f"{what} = {name!r} cannot be loaded ({error}): is there a {module}.py in {folder}?"
        ) from error
    except Exception as error:  # of somebody's own code
        raise ConfigError(
            f"{what} = {name!r} cannot be loaded ({error!r}): correct {module}.py in {folder}"
        ) from error
    finally:
        sys.path.remove(where)
    if not callable(found):
        raise ConfigError(f"{what} = {name!r} is not a function")
    return found


def digest_of_code(function: Callable[..., Any]) -> str:
    """SHA-256 of the file that a function is in.

    Raises:
        ConfigError: it is in none.
    """
    try:
        file = inspect.getsourcefile(function)
    except TypeError:
        file = None
    if file is None:
        raise ConfigError(f"{function!r} is in no Python file: name a function of one")
    return f"sha256:{hashlib.sha256(Path(file).read_bytes()).hexdigest()}"
