"""Keep files of the working directory from being executed.

With `-c` and `-m`, Python puts the working directory first on `sys.path`. A `torch.py` in a run
folder that a stranger has sent would be imported instead of PyTorch. The package imports this
module first, so it uses nothing but `os` and `sys`, which Python has loaded before.
"""

import os
import sys

HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder that holds the package."""


def leave_working_directory() -> None:
    """Take the working directory off `sys.path` if `python -m scool` has put it there.

    In any other program that imports scool the folder belongs to the user, and it stays.
    """
    has_folder = _is_program() and not sys.flags.safe_path
    if has_folder and not _is_trusted(sys.path[0]):
        del sys.path[0]


def python_command(program: str, *words: str) -> list[str]:
    """The command line of a child that sees the modules that this process sees, except those in
    the working directory. It trusts the variables PYTHON... of the environment if we do."""
    paths = [os.path.abspath(path) for path in sys.path if _is_trusted(path)]
    flag = "-I" if sys.flags.ignore_environment else "-P"
    return [sys.executable, flag, "-c", f"import sys; sys.path[:] = {paths}; {program}", *words]


def _is_program() -> bool:
    """Whether Python was told to run this package, or a module of it, by `-m`.

    While a package is imported on the way to its module, `sys.argv[0]` is "-m", and the word in
    that place of the whole command line names the module; the two may be one: `-um scool`,
    `-mscool`.
    """
    if sys.argv[:1] != ["-m"]:
        return False
    word = sys.orig_argv[-len(sys.argv)]
    name = word.partition("m")[2] if word.startswith("-") else word
    return name.partition(".")[0] == "scool"


def _is_trusted(path: str) -> bool:
    """Everything but the working directory; that, too, if scool itself lies there."""
    return not _is_here(path) or _is_here(HOME)


def _is_here(path: str) -> bool:
    try:
        return os.path.samefile(path or os.curdir, os.curdir)
    except OSError:  # a folder that does not exist
        return False
