"""`scool resume DIR` and `scool rerun DIR`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from scool.cli.compare import is_comparison, recorded_comparison
from scool.cli.console import Console
from scool.cli.ranks import goes_on, leading
from scool.cli.run import print_summary
from scool.errors import RunError
from scool.recording.folder import RunFolder
from scool.run.config import config_of, execute


@dataclass(frozen=True)
class ResumeCommand:
    """Continue a run that was stopped; a finished one prints its result again."""

    folder: tyro.conf.Positional[Path]
    """The folder of the run or of the comparison."""
    json: bool = False
    """Print one JSON object instead of a table."""
    quiet: bool = False
    """No progress on stderr."""
    ranks: int = 1
    """Processes on this machine that share the clients; not necessarily as many as before."""


@dataclass(frozen=True)
class RerunCommand:
    """Repeat a run or a comparison with the same configuration in a new folder."""

    folder: tyro.conf.Positional[Path]
    """The folder of the run or of the comparison to repeat."""
    out: Path | None = None
    """Folder for the new records; default: a new one beside the old."""
    json: bool = False
    """Print one JSON object, of a comparison one a method, instead of a table."""
    quiet: bool = False
    """No progress on stderr."""
    ranks: int = 1
    """Processes on this machine that share the clients; not necessarily as many as before."""


def resume(arguments: Sequence[str]) -> int:
    command = tyro.cli(ResumeCommand, args=list(arguments), prog="scool resume")
    if is_comparison(command.folder):
        how = (command.json, command.quiet, command.ranks)
        return recorded_comparison(command.folder, command.folder, *how)
    _refuse_search(command.folder)
    folder = RunFolder.open(command.folder)
    header = folder.header
    config = config_of(header, folder.path)
    clients = config.settings.data.num_clients
    has_models = any(folder.path.glob("checkpoint-*"))
    if header.get("status") == "finished" and "result" in header and not has_models:
        with leading(1, clients):
            kept = {**header["result"], "run_dir": str(folder.path)}  # it may have been moved
            print_summary(kept, command.json)
        return 0
    with (
        leading(command.ranks, clients),
        Console(config.settings.rounds, quiet=command.quiet) as console,
    ):
        result = execute(config, out=folder.path, resume=True, recorders=[console])
    print_summary(result.summary(), command.json)
    return 0


def rerun(arguments: Sequence[str]) -> int:
    command = tyro.cli(RerunCommand, args=list(arguments), prog="scool rerun")
    if is_comparison(command.folder):
        goes_on(command.out)
        out, how = command.out or _beside(command.folder), (command.json, command.quiet)
        return recorded_comparison(command.folder, out, *how, command.ranks)
    _refuse_search(command.folder)
    folder = RunFolder.open(command.folder)
    config = config_of(folder.header, folder.path)
    out = command.out or _beside(folder.path)
    with (
        leading(command.ranks, config.settings.data.num_clients),
        Console(config.settings.rounds, quiet=command.quiet) as console,
    ):
        again = goes_on(command.out)
        result = execute(config, out=out, resume=again, recorders=[console])
    print_summary(result.summary(), command.json)
    return 0


def _refuse_search(folder: Path) -> None:
    if (folder / "tune.json").exists():
        raise RunError(
            f"{folder} is a search: start the same `scool tune ... --out {folder}` again, and it "
            "goes on where it stopped"
        )


def _beside(path: Path) -> Path:
    """The first free name beside a folder."""
    path = path.resolve() if path.name in ("", "..") else path
    number = 1
    while (candidate := path.with_name(f"{path.name}-rerun-{number}")).exists():
        number += 1
    return candidate
