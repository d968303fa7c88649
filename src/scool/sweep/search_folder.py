"""The folder of a search: `tune.jsonl`, a line per finished run; `tune.json`, what was chosen."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scool.errors import ConfigError, RunError
from scool.recording.disk import sync, write_json
from scool.recording.lines import Log, first_link, read_lines
from scool.recording.seals import (
    LIST,
    NUMBER,
    OBJECT,
    TEXT,
    WHOLE,
    Kind,
    check_kinds,
    damaged,
    identity_seal,
    or_null,
    with_seal,
)
from scool.run.identity import modern
from scool.run.options import as_dict, with_options
from scool.run.plugins import check_sources
from scool.sweep.runner import read_about
from scool.sweep.search import Options, Search

OLD, FORMAT = "scool-tune-1", "scool-tune-2"
ABOUT, LOG = "tune.json", "tune.jsonl"
REMEDY = "Bring back a whole copy of it, or search again in another folder"


def write_search(out: Path, values: Mapping[str, Any]) -> None:
    sync([out / LOG])
    write_json(out / ABOUT, with_seal(values))


def open_search(search: Search, out: Path, is_begun: bool) -> tuple[Log, dict[str, Any]]:
    """The log of finished runs, and what `tune.json` says of a search that is not finished."""
    about: dict[str, Any] = {"format": FORMAT, "search": search.to_dict(), "status": "running"}
    if not is_begun:
        about["run"] = identity_seal(json.loads(json.dumps(search.to_dict())))
        write_search(out, about)
        return Log(out / LOG, about["run"]), about
    before = _read(out)
    check_sources((before.get("search") or {}).get("plugins", {}), out)
    if not _is_same(before.get("search"), search):
        raise RunError(f"out = {str(out)!r} holds another search: choose another --out")
    about["run"] = before.get("run") or identity_seal(before["search"])
    log = Log(out / LOG, about["run"], _finished(out, before))
    if "run" not in before:  # of an older version, which sealed nothing
        write_search(out, about)
    log.rewrite()  # the next line begins on a line of its own
    return log, about


def _is_same(before: Any, search: Search) -> bool:
    """Whether a file holds this search. A newer option had its default then, and a removed one had
    no effect."""
    now = json.loads(json.dumps(search.to_dict()))  # JSON has no tuples
    try:
        then = modern({"settings": before["settings"]})["settings"]
        settings = as_dict(with_options(type(search.settings)(), then, "settings"))
    except (ConfigError, KeyError, TypeError, AttributeError):
        return False
    return before | {"settings": json.loads(json.dumps(settings))} == now


_RUN: dict[str, Kind] = {
    "method": TEXT,
    "options": OBJECT,
    "seed": WHOLE,
    "score": or_null(NUMBER),
    "spread": or_null(NUMBER),
    "problem": or_null(TEXT),
}


def _finished(out: Path, about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The lines of `tune.jsonl`; a last one that a kill cut off does not count.

    Raises:
        RunError: a line is not a finished run; the file stays as it is.
    """
    path, run = out / LOG, about.get("run")
    before = first_link(run, LOG) if run else None
    found = read_lines(path, lambda row: check_kinds(row, _RUN), before)
    if found.flaw and not found.is_cut and before and found.rows == [] and _is_unsealed(path):
        found = read_lines(path, lambda row: check_kinds(row, _RUN))  # taken up, then killed
    if found.flaw and not found.is_cut:
        raise RunError(
            f"{path} is damaged: {found.flaw}. Delete that line and those after it, and their "
            "runs are done again, or bring back a whole copy of the file"
        )
    return found.rows


def _is_unsealed(path: Path) -> bool:
    """Whether an older version wrote a log: no line has a seal."""
    return not any(read_lines(path, lambda row: None).seals)


def _read(folder: Path) -> dict[str, Any]:
    return read_about(folder / ABOUT, (OLD, FORMAT), {"run": TEXT}, ("run",), REMEDY)


def check_search(folder: Path) -> None:
    """Check that the records of a search are whole.

    Raises:
        RunError: they are not.
    """
    _finished(folder, _read(folder))


def read_chosen(folder: Path) -> dict[str, Options]:
    """The options that a search chose, by method; only of those with a candidate that finished.

    Raises:
        RunError: the folder holds no finished search.
    """
    values = _read(folder)
    if values.get("status") != "finished":
        raise RunError(
            f"the search in {folder} is not finished: run its `scool tune` again, it continues "
            "where it stopped"
        )
    try:
        check_kinds(values, {"chosen": LIST})
        for row in values["chosen"]:
            check_kinds(row, {"method": TEXT, "options": or_null(OBJECT)})
    except ValueError as error:
        raise _damaged(folder, error) from error
    return {row["method"]: row["options"] for row in values["chosen"] if row["options"] is not None}


def searched_data(folder: Path) -> dict[str, Any]:
    """The data that a search was made on, as options; empty for one that was made from Python."""
    values = _read(folder)
    try:
        for name in ("search", "settings"):
            check_kinds(values, {name: OBJECT})
            values = values[name]
        check_kinds(values, {"data": OBJECT}, optional=["data"])
    except ValueError as error:
        raise _damaged(folder, error) from error
    return values.get("data", {})


def _damaged(folder: Path, error: Exception) -> RunError:
    return damaged(folder / ABOUT, error, REMEDY)
