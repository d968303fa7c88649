"""`scool reproduce natural`: every method tuned alike, and what each owner has of it."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tyro

from scool.contest.figure import gains_figure
from scool.contest.kinds import kinds_of
from scool.contest.numbers import overall_of, rows_of
from scool.contest.plan import Study, read_study
from scool.contest.running import (
    Lines,
    candidates,
    forget,
    missing,
    open_log,
    possible,
    run_contest,
)
from scool.contest.tables import (
    EXPLANATION,
    as_json,
    as_markdown,
    parts_of,
    table_csv,
)
from scool.display.tables import filled_page
from scool.engine.machine import resolve_device
from scool.errors import RunError, require
from scool.recording.disk import LOCK, holding, write_bytes
from scool.recording.folder import make_folder
from scool.run.loop import Interrupted

ABOUT = {
    "natural": "federations of real owners: all methods, tuned alike on validation data",
    "field": "the settings that other papers compare on, likewise; published numbers beside",
}


@dataclass(frozen=True)
class ContestCommand:
    """Options of `scool reproduce natural`. The same command goes on after a stop or a kill."""

    datasets: str = "all"
    """Federations with commas between."""
    methods: str = "all"
    """Methods with commas between, as `contest/methods.toml` names them."""
    seeds: int = 0
    """Runs of the chosen options, judged on test data; 0: as the study says."""
    rounds: int = 0
    """Of every run; 0: as the study says."""
    candidates: int = 0
    """Of each method in stage one; 0: as the study says."""
    out: Path | None = None
    """Folder of the log and the tables; default: runs/ and the name of the study."""
    data_dir: str | None = None
    """Where data files lie; default: $SCOOL_DATA, else ./data."""
    device: str = ""
    """auto, cpu or cuda; default: as the study says."""
    jobs: int = 1
    """Processes that work side by side, of one thread each."""
    minutes: float = 0.0
    """Begin no run after so many minutes; 0: there is no limit."""
    page: Path | None = None
    """Also put the tables into this Markdown page, between its markers: all tables between `begin
    natural` and `end natural`, some between those of `natural overall`, `natural gains`, `natural
    owners` or `natural settings`."""
    forget: bool = False
    """Take the runs of --methods in --datasets out of the log, as their numbers are old; run
    nothing."""
    list: bool = False
    """Show who takes part where and what is done of it; run nothing."""
    only_tables: bool = False
    """Run nothing: tables of what the log has."""
    json: bool = False
    """Print JSON instead of Markdown."""
    quiet: bool = False
    """No progress on stderr."""


def contest(name: str, arguments: Sequence[str]) -> int:
    """Carry out one contest by its options; the exit code."""
    prog = f"scool reproduce {name}"
    command = tyro.cli(ContestCommand, args=list(arguments), prog=prog, description=ABOUT[name])
    require(command.jobs >= 1, "jobs", command.jobs, "give at least 1")
    require(command.minutes >= 0, "minutes", command.minutes, "give 0 (no limit) or more")
    if command.device:
        resolve_device(command.device)
    study = read_study(name, command.datasets, command.methods).changed(
        seeds=command.seeds,
        rounds=command.rounds,
        candidates=command.candidates,
        device=command.device,
    )
    study = Study(**{**vars(study), "data_dir": command.data_dir})
    out = command.out or Path("runs") / name
    notes: list[str] = []
    failed: list[str] = []
    if command.forget:
        return _forget(study, out, command)
    if command.list:
        _show(study, open_log(out)[1])
        return 0
    if command.only_tables:
        lines = open_log(out)[1]
    else:
        lines, notes, failed = _run(study, out, command)
    for words in failed:
        print(words, file=sys.stderr)
    return max(_report(study, lines, notes, out, command), bool(failed))


def _run(study: Study, out: Path, command: ContestCommand) -> tuple[Lines, list[str], list[str]]:
    def say(words: str) -> None:
        if not command.quiet:
            print(words, file=sys.stderr, flush=True)

    pairs, notes = possible(study)
    with _alone_in(out):
        try:
            lines, failed = run_contest(study, pairs, out, command.jobs, command.minutes, say)
        except KeyboardInterrupt:
            raise Interrupted(
                f"stopped; what is done is in {out}, the same command goes on"
            ) from None
    return lines, notes, failed


@contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    make_folder(out)
    with holding(out / LOCK) as is_ours:
        if not is_ours:
            raise RunError(f"another process is at the runs in {out}: choose another --out")
        yield


def _forget(study: Study, out: Path, command: ContestCommand) -> int:
    is_some = "all" not in command.methods
    require(is_some, "methods", command.methods, "name those whose runs are to be forgotten")
    with _alone_in(out):
        count = forget(out, study.settings, study.entries)
    print(f"{count} runs are forgotten")
    return 0


def _show(study: Study, lines: Lines) -> None:
    """A line for each method and federation: how many of its runs are done."""
    pairs, notes = possible(study)
    wide = max((len(setting.name) for setting in study.settings), default=0) + 2
    for setting, entry in pairs:
        todo = candidates(setting, entry)
        tuned = sum(task.key in lines.known for task in todo)
        tested = len(lines.tested(setting, entry))
        print(
            f"{setting.name:<{wide}}{entry.name:<20}{tuned:>3} of {len(todo)} candidates, "
            f"{tested} of {setting.seeds} seeds"
        )
    print("\n".join([*notes, missing(lines, pairs)]))


def _report(
    study: Study, lines: Lines, notes: Sequence[str], out: Path, command: ContestCommand
) -> int:
    rows = rows_of(study, lines)
    if not rows:
        raise RunError(f"no method is finished yet in {out}: the same command goes on")
    overall = overall_of(study, rows)
    kinds = kinds_of(study, lines, rows)
    parts = parts_of(study, rows, overall, kinds)
    text = as_markdown(parts)
    files = {
        "md": f"# {study.title}\n\n{EXPLANATION}\n\n{text}",
        "csv": table_csv(rows),
        "json": as_json(study, rows, overall, notes, kinds),
    }
    for ending, content in files.items():
        write_bytes(out / f"{study.name}.{ending}", content.encode())
    if any(row["gain"] is not None for row in rows):
        figure = gains_figure(study, rows, overall)
        for ending in ("svg", "png"):
            write_bytes(out / f"{study.name}.{ending}", figure.render(ending))
    if command.page is not None:
        by_marker = {f"{study.name} {part}": table for part, table in parts.items()}
        _fill(command.page, study.name, {study.name: text} | by_marker)
    print(files["json" if command.json else "md"], end="")
    for note in notes if not command.quiet else ():
        print(f"note: {note}", file=sys.stderr)
    return 0


def _fill(page: Path, name: str, texts: Mapping[str, str]) -> None:
    """Put texts between the markers that the page has; a text that is empty, as that over several
    settings where one was asked for, leaves its table as it is."""
    there = page.read_text() if page.is_file() else ""
    markers = [marker for marker in texts if f"<!-- begin {marker} -->" in there]
    for marker in markers or [name]:
        if texts[marker]:
            write_bytes(page, filled_page(page, marker, texts[marker]).encode())
