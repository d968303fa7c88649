"""`scool resume DIR` and `scool rerun DIR`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from scool.cli.arguments import Plugged, first_free, take_plugins
from scool.cli.compare import finish, is_comparison
from scool.cli.ranks import leading
from scool.cli.run import carry_out, print_summary
from scool.errors import RunError
from scool.recording.folder import RunFolder
from scool.run.config import config_of
from scool.run.plugins import Source, check_sources
from scool.sweep.compare import read_comparison


@dataclass(frozen=True)
class ResumeCommand(Plugged):
    """Continue a run or a comparison that was stopped; a finished one prints its result again."""

    folder: tyro.conf.Positional[Path]
    """The folder of the run or of the comparison."""
    ranks: int = 1
    """Processes on this machine that share the clients; may differ from before."""


@dataclass(frozen=True)
class RerunCommand(Plugged):
    """Repeat a run or a comparison with the same configuration in a new folder."""

    folder: tyro.conf.Positional[Path]
    """The folder of the run or of the comparison to repeat."""
    out: Path | None = None
    """Folder for the new records; default: a new one beside the old."""
    ranks: int = 1
    """Processes on this machine that share the clients; may differ from before."""


def resume(arguments: Sequence[str]) -> int:
    take_plugins(arguments)
    command = tyro.cli(ResumeCommand, args=list(arguments), prog="scool resume")
    _refuse_search(command.folder)
    if is_comparison(command.folder):
        folder = command.folder
        return finish(read_comparison(folder), folder, command, command.ranks, folder)
    folder = RunFolder.open(command.folder)
    header = folder.header
    check_sources(_plugin_of(header), folder.path)
    config = config_of(header, folder.path)
    has_models = any(folder.path.glob("checkpoint-*"))
    if header.get("status") == "finished" and "result" in header and not has_models:
        with leading(1, config.settings.data.num_clients):
            kept = {**header["result"], "run_dir": str(folder.path)}  # it may have been moved
            print_summary(kept, command.json)
        return 0
    return carry_out(config, folder.path, command, command.ranks, resume=True)


def rerun(arguments: Sequence[str]) -> int:
    take_plugins(arguments)
    command = tyro.cli(RerunCommand, args=list(arguments), prog="scool rerun")
    _refuse_search(command.folder)
    if is_comparison(command.folder):
        out = command.out or _beside(command.folder)
        comparison = read_comparison(command.folder, is_new=True)
        return finish(comparison, out, command, command.ranks, command.out)
    folder = RunFolder.open(command.folder)
    check_sources(_plugin_of(folder.header), folder.path, is_new=True)
    config = config_of(folder.header, folder.path)
    out = command.out or _beside(folder.path)
    return carry_out(config, out, command, command.ranks, asked=command.out)


def _plugin_of(header: Mapping[str, Any]) -> dict[str, Source]:
    """The method of a run with its source, if that is a plugin."""
    config = header.get("config") or {}
    return {config["method"]: config["plugin"]} if "plugin" in config else {}


def _refuse_search(folder: Path) -> None:
    if (folder / "tune.json").exists():
        raise RunError(
            f"{folder} is a search: start the same `scool tune ... --out {folder}` again, and it "
            "continues where it stopped"
        )


def _beside(path: Path) -> Path:
    """The first free name beside a folder."""
    path = path.resolve() if path.name in ("", "..") else path
    return first_free(path, path.with_name(f"{path.name}-rerun"))
