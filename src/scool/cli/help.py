"""Help in two lengths: `--help` with the options that most people need, `--help-all` with all."""

import ast
import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import tyro

T = TypeVar("T")

COMMON = {
    "data": "data client label drop missing min_rows test_fraction metrics dataset data_dir "
    "partition clients val_fraction",
    "learning": "rounds lr epochs batch_size optimizer model hidden start patience fine_tune",
    "owners": "participation availability joins",
    "the run": "methods seeds set tuned budget ranks seed device out config plugin json quiet",
}
"""Options by name that `--help` shows, in this order; a method's own stand under `method`."""
OF_SCOOL = "fraction num_blocks aggregate peers candidates personal"
"""Those of a method that has more than a handful."""
FEW = 8
COLUMN = 26
"""Where the words on an option begin."""


@dataclass(frozen=True)
class Option:
    """One option of a command."""

    part: str  # "" or the field that the dataclass around it is, such as "algorithm"
    name: str
    hint: Any
    default: Any
    words: str

    @property
    def flag(self) -> str:
        no = "no-" if self.default is True else ""
        return f"--{no}{self.name.replace('_', '-')}"


def options_of(command: Any, part: str = "") -> Iterator[Option]:
    """Every option of a command and of the dataclasses in it, but for hidden ones."""
    hints = get_type_hints(type(command), include_extras=True)
    for field in fields(command):
        value, hint = getattr(command, field.name), hints[field.name]
        if tyro.conf.Suppress in getattr(hint, "__metadata__", ()):
            continue
        if is_dataclass(value):
            yield from options_of(value, part or field.name)
        else:
            found = (_described(kind).get(field.name) for kind in type(command).__mro__)
            words = next((words for words in found if words), "")
            yield Option(part, field.name, hint, value, words)


@cache
def _described(kind: type) -> dict[str, str]:
    """The texts that stand below the fields of a class."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return {}
    found: dict[str, str] = {}
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    for field, below in pairwise(body):
        is_field = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if is_field and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[field.target.id] = " ".join(str(below.value.value).split())  # type: ignore
    return found


def short_help(command: Any, prog: str, description: str) -> str:
    """The common options of a command, with the defaults that it has here."""
    options = {option.name: option for option in reversed([*options_of(command)])}
    mine = [o for o in options.values() if o.part == "algorithm" and o.name != "participation"]
    own = [o.name for o in mine[::-1] if o.name not in _names_of_sgd()]
    own = OF_SCOOL.split() if len(own) > FEW else own
    groups = {"method": own} | {title: names.split() for title, names in COMMON.items()}
    lines = [f"usage: {prog} [options]", "", description.rstrip("."), ""]
    for title in ("data", "learning", "method", "owners", "the run"):
        shown = [options[name] for name in groups[title] if name in options]
        if shown:
            lines += [f"{title}:", *(line for option in shown for line in _lines(option)), ""]
    left = len(options) - len({n for names in groups.values() for n in names} & options.keys())
    return "\n".join([*lines, f"{left} more options: {prog} --help-all"] if left > 0 else lines)


@cache
def _names_of_sgd() -> frozenset[str]:
    from scool.learning.local_sgd import LocalSGD

    return frozenset(field.name for field in fields(LocalSGD))


def _lines(option: Option) -> list[str]:
    """An option, what it takes, what it does, and its default."""
    head = f"  {option.flag} {_takes(option.hint)}".rstrip()
    value = option.default
    value = " ".join(map(str, value)) if isinstance(value, tuple) else value
    is_plain = isinstance(value, bool) or value in (None, "", 0)
    text = option.words + ("" if is_plain else f" (default: {value})")
    width = min(shutil.get_terminal_size((100, 24)).columns, 100) - COLUMN
    words = textwrap.wrap(text.strip(), max(30, width)) or [""]
    first = [f"{head:<{COLUMN}}{words[0]}".rstrip()]
    if len(head) >= COLUMN:
        first = [head, " " * COLUMN + words[0]]
    return first + [" " * COLUMN + word for word in words[1:]]


def _takes(hint: Any) -> str:
    """The kind of value, in a word."""
    if hasattr(hint, "__metadata__"):
        return _takes(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return "{" + ",".join(map(str, get_args(hint))) + "}"
    if get_origin(hint) is tuple:
        return f"{_takes(get_args(hint)[0])} ..."
    parts = [part for part in get_args(hint) if part is not type(None)]
    if parts:
        return _takes(parts[0])
    return {int: "INT", float: "FLOAT", Path: "PATH", str: "TEXT", bool: ""}.get(hint, "")


def printed_plainly(parse: Callable[[], T]) -> T:
    """What `parse` prints, such as help with all options, without LaTeX."""
    text = StringIO()
    try:
        with redirect_stdout(text):
            return parse()
    finally:
        print(_plain(text.getvalue()), end="")


_SIGNS = {"sim": " ~ ", "mid": " | ", "to": "-> ", "leftarrow": "<- ", "mathrm": "", "frac": ""}


def _plain(text: str) -> str:
    r"""
    >>> _plain(r"the loss $L_{ij} = L(\theta_i)$ of $z \sim\mathrm{Cat}(\kappa\pi)$  ")
    'the loss L_ij = L(theta_i) of z ~ Cat(kappa pi)'
    """
    words = "\n".join(line.rstrip() for line in text.split("\n"))
    return re.sub(r"\$(?!SCOOL)([^$]*)\$(?!SCOOL)", lambda m: _formula(m.group(1)), words)


def _formula(latex: str) -> str:
    words = re.sub(r"\\[,;!]", "", latex)
    words = re.sub(r"\\([A-Za-z]+) ?(?=[A-Za-z\\]?)", lambda m: _SIGNS.get(m[1], f"{m[1]} "), words)
    words = re.sub(r" (?=[_^({)},.:; ]|$)", "", re.sub("[{}]", "", words))
    return re.sub(" +", " ", words)
