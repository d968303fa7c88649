"""The command line: `scool COMMAND`, one module per command."""

import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from scool.errors import Note, ScoolError, nearest, printable
from scool.recording.seals import DamageWarning

HELP = """scool: learn personal models without a server

usage: scool COMMAND [options]

  run METHOD     one method on one federation          scool run scool-sbm --seed 1
  compare        several methods on one federation     scool compare --methods local,scool-sbm
  tune           options chosen on validation data     scool tune --methods all --lr 0.05,0.1
  reproduce WHAT the paper's table and figures         scool reproduce table1 --seeds 5
  peer           owners on machines of their own       scool peer pilot trial a=127.0.0.1:7447 ...
  resume DIR     continue a run or a comparison that was stopped
  rerun DIR      repeat a run or a comparison with the same configuration
  report RUN...  a page about runs, opens offline      scool report demo --open
  plot KIND RUN  a figure for a paper, and its CSV     scool plot graph demo --out graph.pdf
  export RUN     the graph as GraphML and CSV, the models as safetensors
  ls DIR         the runs in a folder                  scool ls runs
  diff A B       what differs between two runs
  verify DIR     whether records are whole, and what can be recovered
  watch DIR      follow a run of another process
  data           list, check or fetch datasets         scool data list
  bench          time the engine against the loop      scool bench engine
  completion     Tab completion for bash or zsh        scool completion bash > FILE
  --version      the version

scool COMMAND --help lists the options of a command; run, compare and tune have more, which
--help-all lists. Progress goes to stderr, results to stdout.
"""


_NAMES = "run compare tune reproduce peer resume report plot export ls diff verify watch data bench"
_NAMES += " completion"
COMMANDS = {name: f"scool.cli.{name}" for name in _NAMES.split()} | {"rerun": "scool.cli.resume"}
"""The module of each command, which has a function of the same name; imported on first use."""


def dispatch(arguments: Sequence[str]) -> int:
    """Run one command; the exit code."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0 if arguments else 2
    if arguments[0] in ("--version", "-V", "version"):
        from scool.version import __version__

        print(f"scool {__version__}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        raise ScoolError(f"unknown command {name!r}: {nearest(name, COMMANDS)}")
    return getattr(import_module(COMMANDS[name]), name)(rest)


_with_its_line = warnings.formatwarning


def _plainly(message: Any, category: type[Warning], *where: Any, **more: Any) -> str:
    """A warning for a person: what it says, not the line of code that says it."""
    if issubclass(category, UserWarning):
        word = "note" if issubclass(category, Note) else "warning"
        return f"{word}: {printable(str(message))}\n"
    return _with_its_line(message, category, *where, **more)


MANY = 5
"""Damaged records that are named one by one; more are only counted."""


@contextmanager
def _damage_counted() -> Iterator[list[str]]:
    """Yield the list of messages about damaged records; each is printed once."""
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", DamageWarning)
        show = warnings.showwarning

        def once(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, DamageWarning):
                if str(message) in said:
                    return
                said.append(str(message))
                if len(said) > MANY:
                    return
            show(message, category, *where)

        warnings.showwarning = once  # type: ignore[assignment]
        yield said
        if len(said) > MANY:
            print(
                f"warning: and {len(said) - MANY} more; `scool verify` lists all", file=sys.stderr
            )


def run_command(arguments: Sequence[str]) -> int:
    """Run one command as a person does: words on stderr instead of traces; the exit code."""
    try:
        with _damage_counted() as damage:
            code = dispatch(arguments)
        return 2 if damage and code == 0 else code
    except ScoolError as error:
        from scool.run.loop import Interrupted

        print(f"scool: {printable(str(error))}", file=sys.stderr)
        return 130 if isinstance(error, Interrupted) else 2
    except KeyboardInterrupt:
        print("scool: stopped", file=sys.stderr)
        return 130


def main() -> None:
    """Exit codes: 0 done, 2 a mistake in the input or a damaged record, 130 stopped by a person
    (state saved)."""
    warnings.formatwarning = _plainly
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's stop saves, too
    try:
        code = run_command(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has gone, e.g. `scool data list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)
