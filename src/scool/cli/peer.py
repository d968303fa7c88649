"""`scool peer`: owners on machines of their own. Making a run is in `peer_joining.py`."""

import contextlib
import errno
import json as json_module
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console as Terminal
from rich.console import RenderableType
from rich.text import Text

from scool.cli.arguments import Shown, read_toml
from scool.cli.export import export
from scool.cli.peer_amending import amend
from scool.cli.peer_joining import agrees, init, invite, join
from scool.cli.peer_simulate import simulate
from scool.cli.peer_status import status
from scool.cli.run import print_summary
from scool.columns import human_bytes
from scool.display.live import Console
from scool.errors import ConfigError, RunError, ScoolError, nearest, printable

USAGE = """usage: scool peer COMMAND

  init NAME --listen HOST:PORT            a folder with a key, and a request for the founder
  invite run.toml *.request               the founder: an agreement and certificates for all
  join DIR INVITE                         see what is asked, check the data, and sign
  amend DIR *.request                     propose another member for a run that goes on; --withdraw
  run DIR                                 take part as the owner of a folder
  status DIR...                           how these peers are doing; --watch goes on, --page 0
                                          shows it in a browser of this machine
  leave DIR                               go for good; Ctrl-C is for a while
  export DIR                              the own model and row of the graph, for other programs
  audit DIR                               what left this machine, and whether the log is whole
  pilot DIR a=HOST:PORT b=HOST:PORT ...   ready folders for a trial, one per owner
  simulate                                processes on this machine, killed, asleep and cut off

scool peer COMMAND --help lists the options of a command.
"""


ALONE = 50  # rounds for which the owners of a trial train alone, to compare


@dataclass(frozen=True)
class PilotCommand:
    """Make a folder per owner: keys, certificates, the agreement, and digits to learn from.

    All keys are made in one place, so this is for trials.
    """

    folder: tyro.conf.Positional[Path]
    """The new folder."""
    members: tyro.conf.Positional[tuple[str, ...]]
    """name=host:port of each owner: where it listens and the others find it."""
    method: str = "scool-sbm"
    """A method that runs on peers; docs/peers.md lists them."""
    rounds: int = 30
    """Communication rounds."""
    seed: int = 0
    """Decides the first model, the batches, every draw, and the digits."""
    mode: str = "strict"
    """strict: every round waits for all; elastic: it goes on without who is late."""
    deadline: float = 60.0
    """elastic: seconds that a round waits at most."""
    options: Path | None = None
    """A TOML file with options of the method."""


@dataclass(frozen=True, kw_only=True)
class RunCommand(Shown):
    """Take part in a run, from the beginning or from the last round that was saved."""

    folder: tyro.conf.Positional[Path]
    """The owner's folder."""


@dataclass(frozen=True)
class ExportCommand:
    """Write the own model and the own row of the graph for other programs."""

    folder: tyro.conf.Positional[Path]
    """The owner's folder."""
    out: Path | None = None
    """Folder for the files; default: `export` in the owner's folder."""
    onnx: bool = False
    """Also write the model as an ONNX program; needs scool[onnx]."""


@dataclass(frozen=True)
class LeaveCommand:
    """Leave a run for good. A peer that runs tells the others, saves and ends; it cannot come back.

    To stop for a while, press Ctrl-C in `scool peer run`.
    """

    folder: tyro.conf.Positional[Path]
    """The owner's folder."""
    yes: bool = False
    """Do not ask."""


@dataclass(frozen=True)
class AuditCommand:
    """Check that audit.jsonl is as it was written, and sum up what left this machine."""

    folder: tyro.conf.Positional[Path]
    """The owner's folder."""
    head: str = ""
    """A hash that this command told before: it has to be in the log."""
    json: bool = False
    """Print JSON."""


def peer(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in COMMANDS:
        raise ConfigError(f"unknown command 'peer {name}': {nearest(name, COMMANDS)}")
    try:
        return COMMANDS[name](rest)
    except OSError as error:
        raise RunError(_in_words(error)) from error
    except ImportError as error:
        if error.name not in ("zenoh", "cryptography"):
            raise
        raise ScoolError(
            f"peers need {error.name}, which is not installed: pip install 'scool[peer]'"
        ) from error


def _in_words(error: OSError) -> str:
    """What the system refuses, and what a person can do about it."""
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{what}. Free some space, and give the command again: what was saved is whole"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{what}. Let the user of this command read and write there"
    return f"{what}. Put that right, and give the command again: what was saved is whole"


def _pilot(arguments: Sequence[str]) -> int:
    from scool.peer.join import train_alone, write_alone
    from scool.peer.owner import open_owner
    from scool.peer.pilot import Trial, make_pilot

    command = tyro.cli(PilotCommand, args=list(arguments), prog="scool peer pilot")
    addresses: dict[str, str] = {}
    for member in command.members:
        name, equals, address = member.partition("=")
        if not equals or name in addresses:
            raise ConfigError(f"member {member!r} is not possible: give name=host:port, each once")
        addresses[name] = address
    trial = Trial(
        command.method,
        command.rounds,
        command.seed,
        mode=command.mode,  # type: ignore[arg-type]  # checked with the agreement
        deadline=command.deadline,
    )
    options = read_toml(str(command.options)) if command.options else {}
    folders = make_pilot(command.folder, addresses, trial, options)
    for folder in folders:
        owner, rounds = open_owner(folder), min(trial.rounds, ALONE)
        write_alone(folder, train_alone(folder, owner.agreement, owner.load(), rounds))
    print("Each owner takes its folder to its machine and runs")
    for folder in folders:
        print(f"  scool peer run {folder}")
    print("All keys were made here: for trials only.")
    return 0


def _run(arguments: Sequence[str]) -> int:
    from scool.peer.node import run_owner
    from scool.peer.owner import open_owner
    from scool.peer.panel import peer_panel
    from scool.peer.standing import Standing

    command = tyro.cli(RunCommand, args=list(arguments), prog="scool peer run")
    owner = open_owner(command.folder)

    def tell(words: str) -> None:
        if not command.quiet:
            print(f"{owner.name}: {printable(words)}", file=sys.stderr)

    def drawn() -> RenderableType:
        with contextlib.suppress(ScoolError):
            return peer_panel(Standing.read(owner.folder))
        return Text("starting")

    with Console(owner.agreement.rounds, quiet=command.quiet, drawn=drawn) as console:
        summary = run_owner(owner, [console], tell)
    if command.json:
        print_summary(dict(summary), as_json=True)
        return 0
    Terminal().print(peer_panel(Standing.read(owner.folder)))
    print(f"model and graph: {owner.records}")
    print(f"`scool peer export {owner.folder}` writes them for other programs")
    return 0


def _leave(arguments: Sequence[str]) -> int:
    from scool.peer.leaving import leave, what_happens
    from scool.peer.owner import open_owner

    command = tyro.cli(LeaveCommand, args=list(arguments), prog="scool peer leave")
    owner = open_owner(command.folder)
    print(f"{owner.name} leaves for good: {what_happens(owner)}.")
    if not command.yes and not agrees("Leave?"):
        print("not left; nothing was changed")
        return 1
    leave(owner)
    print(
        "left. A peer that runs here tells the others and ends within a round; if none runs, tell"
    )
    print(f"them yourself. What was learned stays in {owner.records}")
    return 0


def _export(arguments: Sequence[str]) -> int:
    from scool.peer.agreement import Agreement
    from scool.peer.owner import RECORDS

    command = tyro.cli(ExportCommand, args=list(arguments), prog="scool peer export")
    Agreement.read(command.folder)
    if not (command.folder / RECORDS / "run.json").exists():
        raise RunError(
            f"{command.folder} has no model yet: `scool peer run {command.folder}` makes one"
        )
    out = ["--out", str(command.out or command.folder / "export")]
    return export([str(command.folder / RECORDS), *out, *(["--onnx"] if command.onnx else [])])


def _audit(arguments: Sequence[str]) -> int:
    from scool.peer.audit import NAME, verify

    command = tyro.cli(AuditCommand, args=list(arguments), prog="scool peer audit")
    found = verify(command.folder / NAME, command.head)
    if command.json:
        print(json_module.dumps(found._asdict()))
        return 0
    for name, kinds in sorted(found.left.items()):
        said = ", ".join(
            f"{human_bytes(count)} of {kind}s" for kind, count in sorted(kinds.items())
        )
        print(f"to {printable(name)}: {said}")
    print(f"{found.refused} refusals; {found.lines} lines, whole")
    print(f"head: {found.head}")
    return 0


COMMANDS = {
    "audit": _audit,
    "amend": amend,
    "init": init,
    "invite": invite,
    "join": join,
    "run": _run,
    "status": status,
    "leave": _leave,
    "export": _export,
    "pilot": _pilot,
    "simulate": simulate,
}
