"""`scool run METHOD`: one method on one federation."""

import json as json_module
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scool.algorithms import AnyAlgorithm, LocalOnly
from scool.cli.arguments import parse, peek, peek_data, read_toml
from scool.cli.console import Console, new_folder
from scool.cli.ranks import goes_on, leading
from scool.contracts import Recorder
from scool.display.tables import comparison_table
from scool.errors import ConfigError, nearest
from scool.run.config import RunConfig, Settings, default_run, execute
from scool.run.options import with_options
from scool.run.recipes import METHODS


@dataclass(frozen=True)
class RunCommand:
    """Options of `scool run`."""

    settings: Settings = field(default_factory=Settings)
    algorithm: AnyAlgorithm = field(default_factory=LocalOnly)
    out: Path | None = None
    """Folder for the records; default: a new one under runs/."""
    json: bool = False
    """Print one JSON object instead of a table."""
    quiet: bool = False
    """No progress on stderr."""
    tensorboard: bool = False
    """Also write event files for TensorBoard, into tensorboard/ of the run folder."""
    wandb: bool = False
    """Also log to Weights & Biases; WANDB_MODE=offline keeps it on disk."""
    mlflow: bool = False
    """Also log to MLflow, where MLFLOW_TRACKING_URI says."""
    config: Path | None = None
    """A TOML file with options; flags override it."""
    ranks: int = 1
    """Processes on this machine that share the clients; for several machines use torchrun."""


def usage() -> str:
    """The methods by name, with a word on each."""
    width = max(map(len, METHODS))
    lines = [f"  {name:<{width}}  {about}" for name, (about, _) in METHODS.items()]
    return (
        "usage: scool run METHOD [options]      (scool run METHOD --help lists the options)\n\n"
        "methods:\n" + "\n".join(lines)
    )


def configure(arguments: Sequence[str]) -> tuple[RunCommand, str]:
    """The command with every option resolved: recipe, then TOML, then flags."""
    method, *rest = arguments
    if method.startswith("-"):
        raise ConfigError(f"the method comes first: scool run METHOD [options]; got {method!r}")
    if method not in METHODS:
        raise ConfigError(f"unknown method {method!r}: {nearest(method, METHODS)}")
    options = read_toml(peek(rest, "--config"))
    base = default_run(method, peek_data(rest, options))
    default = RunCommand(settings=base.settings, algorithm=base.algorithm)
    default = with_options(default, options, "the configuration file")
    return parse(default, rest, f"scool run {method}", METHODS[method][0]), method


def run(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    command, method = configure(arguments)
    config = RunConfig(method, command.algorithm, command.settings)
    out = command.out or new_folder(f"{method}-{command.settings.data.dataset}")
    trackers = chosen_trackers(command, out)
    with (
        leading(command.ranks, config.settings.data.num_clients),
        Console(config.settings.rounds, quiet=command.quiet) as console,
    ):
        resume = goes_on(out if command.out else None)
        result = execute(config, out=out, resume=resume, recorders=[console, *trackers])
    print_summary(result.summary(), command.json)
    return 0


def chosen_trackers(command: RunCommand, out: Path) -> list[Recorder]:
    """The trackers that were asked for, one flag each."""
    from scool.recording.trackers import MLflow, TensorBoard, WandB

    makers: list[tuple[bool, Callable[[], Recorder]]] = [
        (command.tensorboard, lambda: TensorBoard(out / "tensorboard")),
        (command.wandb, lambda: WandB(out)),
        (command.mlflow, MLflow),
    ]
    return [make() for is_wanted, make in makers if is_wanted]


def print_summary(summary: dict[str, object], as_json: bool) -> None:
    """The result on stdout: a line for machines, or a table and the folder for a person."""
    if as_json:
        print(json_module.dumps(summary))
        return
    comparison_table([summary])
    print(f"records: {summary['run_dir']}")
