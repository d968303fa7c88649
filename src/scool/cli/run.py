"""`scool run METHOD`: one method on one federation."""

import json as json_module
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

from scool.algorithms import METHODS, AnyAlgorithm, LocalOnly
from scool.cli.arguments import Recorded, Shown, configure, peek, read_toml, take_plugins
from scool.contracts import Recorder
from scool.data.catalogue import DataConfig
from scool.display.live import Console
from scool.display.tables import comparison_table
from scool.errors import ConfigError, nearest
from scool.run.config import RunConfig, Settings, default_run, execute


@dataclass(frozen=True)
class ServerSettings(Settings):
    """Settings for a method that has a `participation` of its own, which the flag sets."""

    participation: Annotated[float, tyro.conf.Suppress] = 1.0


@dataclass(frozen=True)
class RunCommand(Recorded):
    """Options of `scool run`."""

    algorithm: AnyAlgorithm = field(default_factory=LocalOnly)
    settings: Settings | ServerSettings = field(default_factory=Settings)
    tensorboard: bool = False
    """Also write event files for TensorBoard, into tensorboard/ of the run folder."""
    wandb: bool = False
    """Also log to Weights & Biases; WANDB_MODE=offline keeps it on disk."""
    mlflow: bool = False
    """Also log to MLflow, where MLFLOW_TRACKING_URI says."""
    ranks: int = 1
    """Processes on this machine that share the clients; for several machines use torchrun."""

    @classmethod
    def of(cls, method: str, data: DataConfig) -> "RunCommand":
        base = default_run(method, data)
        settings = base.settings
        if hasattr(base.algorithm, "participation"):
            settings = ServerSettings(**vars(settings))
        return cls(settings=settings, algorithm=base.algorithm)


def usage() -> str:
    """The methods by name, with a few words on each."""
    width = max(map(len, METHODS))
    lines = [f"  {name:<{width}}  {about}" for name, (about, _) in METHODS.items()]
    return (
        "usage: scool run METHOD [options]      (scool run METHOD --help lists the options)\n\n"
        "methods:\n" + "\n".join(lines)
    )


def parse_run(arguments: Sequence[str]) -> tuple[RunCommand, str]:
    """The command and the name of its method."""
    method, *rest = arguments
    if method.startswith("-"):
        raise ConfigError(f"the method comes first: scool run METHOD [options]; got {method!r}")
    if method not in METHODS:
        raise ConfigError(
            f"unknown method {method!r}: {nearest(method, METHODS)}. Your own methods need "
            "--plugin FILE"
        )
    options = read_toml(peek(rest, "--config"))
    about, prog = METHODS[method][0], f"scool run {method}"
    command = configure(rest, options, lambda data: RunCommand.of(method, data), prog, about)
    return replace(command, settings=Settings(**vars(command.settings))), method


def _plugins_last(arguments: Sequence[str]) -> list[str]:
    """The method comes first: a plugin given before it, which may define it, moves to the end."""
    first, words = list[str](), list(arguments)
    while words and words[0].partition("=")[0] == "--plugin":
        count = 1 if "=" in words[0] else 2
        first, words = first + words[:count], words[count:]
    return words + first if words else words


def run(arguments: Sequence[str]) -> int:
    take_plugins(arguments)
    arguments = _plugins_last(arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    command, method = parse_run(arguments)
    config = RunConfig(method, command.algorithm, command.settings)
    out = command.folder(f"{method}-{command.settings.data.dataset}")
    trackers = chosen_trackers(command, out)
    return carry_out(config, out, command, command.ranks, recorders=trackers, asked=command.out)


ADVISED = 8
"""Clients whose advice from the recommended method is printed; the report shows all."""


def carry_out(
    config: RunConfig,
    out: Path,
    shown: Shown,
    ranks: int,
    *,
    asked: Path | None = None,
    resume: bool = False,
    recorders: Sequence[Recorder] = (),
) -> int:
    """Do a run, by several ranks if asked for, and print its result. `asked` is the folder given by
    --out, in which a restart by torchrun continues."""
    with ExitStack() as held:
        if ranks != 1 or "WORLD_SIZE" in os.environ:  # torchrun sets it
            from scool.cli.ranks import goes_on, leading

            held.enter_context(leading(ranks, config.settings.data.num_clients))
            resume = resume or goes_on(asked)
        console = held.enter_context(Console(config.settings.rounds, quiet=shown.quiet))
        result = execute(config, out=out, resume=resume, recorders=[console, *recorders])
    print_summary(result.summary(), shown.json)
    if not shown.json and (found := result.advice()):
        print("\n".join(found[:ADVISED]))
        if left := len(found[ADVISED:]):
            print(f"and {left} more: `scool report {result.run_dir}` shows each client")
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
    """Print the result: a line for machines, or a table and the folder for a person."""
    if as_json:
        print(json_module.dumps(summary))
        return
    comparison_table([summary])
    print(f"records: {summary['run_dir']}")
