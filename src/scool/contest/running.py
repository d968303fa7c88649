"""Run a contest: candidates on validation data, then the chosen one of each method on test data."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from scool.contest.one_run import federation_of, line_of
from scool.contest.plan import Entry, Setting, Study, Task
from scool.data.federation import Federation
from scool.errors import ConfigError, RunError
from scool.recording.lines import Log, first_link, read_lines
from scool.recording.seals import NUMBER, OBJECT, TEXT, WHOLE, Kind, check_kinds, or_null
from scool.sweep.runner import why_not
from scool.sweep.search import Options
from scool.sweep.workers import work_through

LOG, FORMAT = "runs.jsonl", "scool-contest-1"
Line = Mapping[str, Any]
_LINE: dict[str, Kind] = {
    **dict.fromkeys(("key", "setting", "method", "stage"), TEXT),
    "options": OBJECT,
    "seed": WHOLE,
    "score": or_null(NUMBER),
    "problem": or_null(TEXT),
}


@dataclass
class Lines:
    """What is known of the runs of a contest, by the key of their task."""

    known: dict[str, Line] = field(default_factory=dict)

    def seconds(self, setting: str, entry: str = "") -> list[float]:
        """What runs in a setting took, of all methods or of one."""
        return [
            line["seconds"]
            for line in self.known.values()
            if line.get("setting") == setting and entry in ("", line["method"])
            if "seconds" in line
        ]

    def tuned(self, setting: Setting, entry: Entry) -> list[tuple[Options, list[Line]]] | None:
        """Each candidate with its runs; None where some are missing."""
        found: list[tuple[Options, list[Line]]] = []
        for options in setting.search(entry).candidates(entry.name):
            tasks = [Task(setting, entry, "tune", options, s) for s in range(setting.tuning_seeds)]
            if any(task.key not in self.known for task in tasks):
                return None
            found.append((options, [self.known[task.key] for task in tasks]))
        return found

    def chosen(self, setting: Setting, entry: Entry) -> Options | None:
        """The candidate with the best mean on validation data; None where all diverged, or
        not all are known."""
        finished = [
            (setting.sign * sum(line["score"] for line in lines) / len(lines), options)
            for options, lines in self.tuned(setting, entry) or ()
            if all(line["score"] is not None and not line["problem"] for line in lines)
        ]
        return max(finished, key=lambda pair: pair[0])[1] if finished else None

    def tested(self, setting: Setting, entry: Entry) -> list[Line]:
        """The runs of the chosen candidate on test data, by seed."""
        tasks = (
            [] if (best := self.chosen(setting, entry)) is None else finals(setting, entry, best)
        )
        return [self.known[task.key] for task in tasks if task.key in self.known]


def candidates(setting: Setting, entry: Entry) -> list[Task]:
    """Stage one of a method."""
    return [
        Task(setting, entry, "tune", options, seed)
        for options in setting.search(entry).candidates(entry.name)
        for seed in range(setting.tuning_seeds)
    ]


def finals(setting: Setting, entry: Entry, options: Options) -> list[Task]:
    """Stage two of a method."""
    return [Task(setting, entry, "test", options, seed) for seed in range(setting.seeds)]


def open_log(out: Path) -> tuple[Log, Lines]:
    """The log of a folder and what it holds; a last line that a kill cut off does not count.

    Raises:
        RunError: a line is none of a contest.
    """
    path = out / LOG
    found = read_lines(path, lambda row: check_kinds(row, _LINE), first_link(FORMAT, LOG))
    if found.flaw and not found.is_cut:
        raise RunError(
            f"{path} is damaged: {found.flaw}. Delete that line and those after it, and their runs "
            "are done again, or bring back a whole copy of the file"
        )
    log = Log(path, FORMAT, found.rows)
    return log, Lines({row["key"]: row for row in log.rows})


def possible(study: Study) -> tuple[list[tuple[Setting, Entry]], list[str]]:
    """Who takes part where, and words on each method that a federation does not allow."""
    pairs: list[tuple[Setting, Entry]] = []
    notes: list[str] = []
    for setting in study.settings:
        federation = federation_of(setting, study.data_dir, "test", 0)
        for entry in study.entries:
            why = _why_not(setting, entry, study.data_dir, federation)
            if why is None:
                pairs.append((setting, entry))
            else:
                notes.append(f"{entry.name} is left out on {setting.name}: {why}")
    return pairs, notes


def _why_not(
    setting: Setting, entry: Entry, data_dir: str | None, federation: Federation
) -> str | None:
    """Why a method takes no part: the options of the setting, or its federation."""
    try:
        job = setting.search(entry, data_dir).starts[entry.name]
    except ConfigError as error:
        return str(error)
    return why_not(job.algorithm, job.model, federation, 0)


def run_contest(
    study: Study,
    pairs: Sequence[tuple[Setting, Entry]],
    out: Path,
    jobs: int = 1,
    minutes: float = 0.0,
    say: Callable[[str], None] = lambda words: None,
) -> tuple[Lines, list[str]]:
    """Run what has not been run yet. Returns what is known then, and words on runs that failed:
    they are not in the log, and the next call tries them again.

    Args:
        pairs: who takes part where.
        minutes: begin no run after so many; 0: there is no limit.
    """
    log, lines = open_log(out)
    log.rewrite()
    began, count, failed = time.monotonic(), 0, list[str]()
    waiting = {(s.name, e.name) for s, e in pairs if lines.tuned(s, e) is None}

    def unlocked(setting: Setting, entry: Entry) -> list[Task]:
        best = lines.chosen(setting, entry)
        every = [] if best is None else finals(setting, entry, best)
        return [task for task in every if task.key not in lines.known]

    def done(task: Task, line: Line) -> list[Task]:
        nonlocal count
        if "failed" in line:
            failed.append(f"{task.name} failed: {line['failed']}")
            return []
        log.append(line)
        lines.known[task.key] = line
        count += 1
        say(f"{count}: {task.name}, {line.get('seconds', '-')} s: {line['score']}")
        pair = (task.setting.name, task.entry.name)
        if pair in waiting and lines.tuned(task.setting, task.entry) is not None:
            waiting.remove(pair)
            return unlocked(task.setting, task.entry)
        return []

    todo = [
        task
        for pair in pairs
        for task in (*candidates(*pair), *unlocked(*pair))
        if task.key not in lines.known
    ]
    say(missing(lines, pairs))
    work = partial(line_of, data_dir=study.data_dir)
    is_late = lambda: bool(minutes) and time.monotonic() - began > 60 * minutes  # noqa: E731
    work_through(todo, work, done, jobs, is_late)
    return lines, failed


def missing(lines: Lines, pairs: Sequence[tuple[Setting, Entry]]) -> str:
    """How many runs are missing, and how long one core will be at them: by the runs of a method in
    a setting that are known, else by those of the others there."""
    count, seconds, unknown = 0, 0.0, False
    for setting, entry in pairs:
        known = [task.key in lines.known for task in candidates(setting, entry)]
        left = known.count(False) + setting.seeds - len(lines.tested(setting, entry))
        own = lines.seconds(setting.name, entry.name) or lines.seconds(setting.name)
        count, unknown = count + left, unknown or not (own or not left)
        seconds += left * (mean(own) if own else 0.0)
    words = "nothing is known of some" if unknown else f"about {seconds / 60:.1f} minutes of a core"
    return f"{count} runs to do: {words}"


def forget(out: Path, settings: Sequence[Setting], entries: Sequence[Entry]) -> int:
    """Take the runs of these methods in these settings out of a log; how many there were."""
    log, _ = open_log(out)
    places, names = {s.name for s in settings}, {e.name for e in entries}
    kept = [r for r in log.rows if r["setting"] not in places or r["method"] not in names]
    Log(log.path, FORMAT, kept).rewrite()
    return len(log.rows) - len(kept)
