"""`scool reproduce WHAT`: the paper's table, figures and ablations, run or put together again."""

import json as json_module
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from scool.cli.contest import ABOUT as CONTESTS
from scool.cli.contest import contest
from scool.contracts import Recorder
from scool.display.live import Console, duration
from scool.display.tables import filled_page
from scool.errors import ConfigError, RunError, nearest
from scool.recording.disk import write_bytes
from scool.recording.folder import RunFolder, make_folder
from scool.reproduction.figures import figures_of, write_figures
from scool.reproduction.measured import Measured, collect, summarise_row, without_shortened
from scool.reproduction.plan import TARGETS, Job, Study, choose_rows, jobs_of
from scool.reproduction.rows import Row
from scool.reproduction.running import check_whole, is_over, run_jobs, state_of
from scool.reproduction.tables import (
    Summary,
    as_json,
    as_latex,
    as_markdown,
    family_tables,
    table_csv,
)
from scool.run.loop import Interrupted

ABOUT = {
    "table1": "every row of the paper's table, beside the paper's accuracies",
    "convergence": "accuracy and training loss over local epochs; the runs of table1",
    "graphs": "heat maps of the mixing weights over rounds, SBM and attention",
    "graph-error": "L1 distance to the true graph over the first 20 rounds",
    "budget": "accuracy with 2, 5, 8 and 10 % of the clients as peers, over bytes",
    "ablations": "one change at a time; --methods takes families, too",
}


@dataclass(frozen=True)
class ReproduceCommand:
    """Options of `scool reproduce`. The same command continues after a stop or a kill."""

    dataset: str = "cifar10"
    """cifar10, cifar100 or mini_imagenet."""
    setting: Literal["noniid", "sbm"] = "noniid"
    """The paper's partitions: non-IID and non-IID SBM."""
    seeds: int | None = None
    """How many, from --seed on; default: 1, and with --results all that are recorded (with --seed:
    that one)."""
    seed: int | None = None
    """The first seed; default: 0."""
    methods: str = "all"
    """Rows, methods or families of ablations, separated by commas; --list shows the rows."""
    out: Path | None = None
    """Folder that runs are added to; its tables and figures show the rows asked for last. Default:
    runs/reproduction."""
    results: tuple[Path, ...] | None = None
    """Run nothing: take the records below these folders. Prints; files only with --out."""
    rounds: int = 0
    """Most rounds of a run, to shorten (of records the first ones); 0: as the row says."""
    device: str = "auto"
    """auto, cpu or cuda."""
    data_dir: str | None = None
    """Where data files lie; default: $SCOOL_DATA, else ./data."""
    clients: int = 0
    """Number of clients; 0: 100, as in the paper."""
    verify_checksums: bool = True
    """Check data files against the official sizes and checksums."""
    page: Path | None = None
    """Also put the tables into this Markdown page, between its markers. The first says where they
    are from, and --methods where it chooses."""
    list: bool = False
    """Show the runs asked for and what is done of them; run nothing."""
    json: bool = False
    """Print JSON instead of Markdown."""
    quiet: bool = False
    """No progress on stderr."""

    @property
    def study(self) -> Study:
        return Study(
            dataset=self.dataset,
            setting=self.setting,
            seeds=1 if self.seeds is None else self.seeds,
            seed=self.seed or 0,
            rounds=self.rounds,
            device=self.device,
            data_dir=self.data_dir,
            clients=self.clients,
            verify_checksums=self.verify_checksums,
        )

    @property
    def wanted_seeds(self) -> range | None:
        """Of recorded runs; None: all."""
        if self.seeds is None and self.seed is None:
            return None
        first = self.seed or 0
        return range(first, first + (self.seeds or 1))


def usage() -> str:
    lines = [f"  {name:<12} {about}" for name, about in (ABOUT | CONTESTS).items()]
    return (
        "usage: scool reproduce WHAT [options]      (scool reproduce WHAT --help lists them)\n\n"
        + "\n".join(lines)
    )


def reproduce(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        print(usage())
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    target, *rest = arguments
    if target in CONTESTS:
        return contest(target, rest)
    if target not in TARGETS:
        raise ConfigError(f"unknown reproduction {target!r}: {nearest(target, ABOUT | CONTESTS)}")
    prog = f"scool reproduce {target}"
    command = tyro.cli(ReproduceCommand, args=rest, prog=prog, description=ABOUT[target])
    if command.results == ():
        raise ConfigError("--results has no value: name the folders whose records count")
    study, rows = command.study, choose_rows(target, command.methods)
    out = command.out or (None if command.results else Path("runs") / "reproduction")
    if command.list and command.results:
        raise ConfigError("--list shows what --out has, and --results runs nothing: give one")
    if command.list:
        _show(jobs_of(study, rows, out or Path("runs") / "reproduction"), command.json)
        return 0
    if command.results:
        _report(target, study, rows, command.results, out, command)
        return 0
    assert out is not None
    jobs = jobs_of(study, rows, out)
    try:
        _run(jobs, command.quiet)
    except Interrupted:
        with suppress(RunError):  # what is there so far is shown, if anything is
            _report(target, study, rows, [out], out, command)
        raise
    if not any(is_over(job) for job in jobs):
        print("no run is finished yet: other processes are at them", file=sys.stderr)
        return 0
    _report(target, study, rows, [out], out, command)
    return 0


def _run(jobs: Sequence[Job], quiet: bool) -> None:
    @contextmanager
    def watch(job: Job) -> Iterator[Recorder]:
        with Console(job.config.settings.rounds, quiet=quiet) as console:
            yield console

    def say(words: str, left: float | None) -> None:
        if not quiet:
            rest = "" if left is None else f"; all that is left: about {duration(left)}"
            print(f"{words}{rest}", file=sys.stderr, flush=True)

    run_jobs(jobs, watch, say)


def _show(jobs: Sequence[Job], as_json: bool) -> None:
    """The plan, a line per run."""
    for job in jobs:
        why, rounds, name = "", job.config.settings.rounds, job.row.name
        try:
            state, status = state_of(job), "to do"
            if state == "over":
                check_whole(job)
            if state != "missing":
                status = str(RunFolder(job.folder).header.get("status"))
        except RunError as error:  # damaged, of other options, or no run at all
            status, why = "in the way", str(error)
        line = {"status": status, "rounds": rounds, "row": name, "folder": str(job.folder)}
        line |= {"why": why} if why else {}
        words = f"{status:<12} {rounds:>6} rounds  {name:<32} {job.folder}"
        print(json_module.dumps(line) if as_json else words + (f"\n    {why}" if why else ""))


def _report(
    target: str,
    study: Study,
    rows: Sequence[Row],
    folders: Sequence[Path],
    out: Path | None,
    command: ReproduceCommand,
) -> None:
    """Tables to stdout and, with the figures, to files."""
    seeds = command.wanted_seeds if command.results else None
    measured, notes = collect(study, rows, folders, seeds)
    if not measured:
        raise RunError(
            f"no finished run of {target}, {study.name} is in "
            f"{', '.join(map(str, folders))}: check --dataset, --setting, --methods, --clients, "
            f"--rounds and --seed{''.join(f'; {note}' for note in notes[:1])}"
        )
    shown, words = without_shortened(measured, study)
    notes += words
    summaries = [summarise_row(row, study, measured) for row in shown]
    missing = [row.name for row in rows if row.name not in {s["row"] for s in summaries}]
    if missing:
        notes.append(f"no finished run of: {', '.join(dict.fromkeys(missing))}")
    files: list[Path] = []
    if out is not None:
        files, words = _draw(target, study, shown, out)
        notes += words
        files += _write(target, study, summaries, notes, out)
    elif target not in ("table1", "ablations"):
        print(f"note: the figure of {target} needs --out, a folder for it", file=sys.stderr)
    if command.page is not None:
        chosen = () if command.methods == "all" else ("--methods", command.methods)
        name, source = f"{target} {study.name}", " ".join(map(str, (*folders, *chosen)))
        filled = filled_page(command.page, name, family_tables(summaries), source)
        write_bytes(command.page, filled.encode())
    printed = as_json if command.json else as_markdown
    print(printed(target, study, summaries, notes), end="")
    if files and not command.quiet:
        print(f"written: {', '.join(map(str, files))}", file=sys.stderr)


def _draw(
    target: str, study: Study, measured: Sequence[Measured], out: Path
) -> tuple[list[Path], list[str]]:
    """Write the figures of a target; messages about those that cannot be drawn."""
    files: list[Path] = []
    words: list[str] = []
    for rows in [[row] for row in measured] if target == "graphs" else [measured]:  # one per row
        try:
            files += write_figures(figures_of(target, rows), out / "figures", study.name)
        except RunError as error:
            words.append(str(error))
    return files, words


def _write(
    target: str, study: Study, summaries: Sequence[Summary], notes: Sequence[str], out: Path
) -> list[Path]:
    """The tables of a target as files."""
    make_folder(out)
    files = {
        "md": as_markdown(target, study, summaries, notes),
        "csv": table_csv(summaries),
        "tex": as_latex(target, study, summaries),
        "json": as_json(target, study, summaries, notes),
    }
    paths = {out / f"{target}-{study.name}.{ending}": text for ending, text in files.items()}
    for path, text in paths.items():
        write_bytes(path, text.encode())
    return list(paths)
