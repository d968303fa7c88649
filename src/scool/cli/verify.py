"""`scool verify DIR`: whether records are whole, and what can be recovered."""

import json as json_module
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from scool.errors import RunError, printable
from scool.recording.verify import Finding, Verdict, verify_models, verify_run
from scool.sweep.compare import read_comparison
from scool.sweep.tune import check_search


@dataclass(frozen=True)
class VerifyCommand:
    """Compare every record with its checksum and with the run that it belongs to."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs, comparisons, searches or exported models."""
    all: bool = False
    """Verify everything below these folders."""
    json: bool = False
    """Print one JSON object per folder."""


def verify(arguments: Sequence[str]) -> int:
    command = tyro.cli(VerifyCommand, args=list(arguments), prog="scool verify")
    if not command.folders:
        raise RunError("scool verify needs a folder: scool verify RUN, or scool verify --all runs")
    verdicts = [verdict for path in command.folders for verdict in _verdicts(path, command.all)]
    for verdict in verdicts:
        print(json_module.dumps(_as_json(verdict)) if command.json else printable(_words(verdict)))
    broken = [verdict for verdict in verdicts if not verdict.is_whole]
    if not command.json and len(verdicts) > 1:
        print(f"{len(verdicts) - len(broken)} of {len(verdicts)} folders are whole")
    return 2 if broken else 0


def _verdicts(path: Path, is_all: bool) -> Iterator[Verdict]:
    """One verdict per folder that holds records."""
    if not path.is_dir():
        raise RunError(f"folder = {str(path)!r} is not a folder: give a run or a comparison")
    is_group = (path / "compare.json").is_file() or (path / "tune.json").is_file()
    if is_group:
        yield _verify_group(path)
    if is_group or is_all:
        yield from (verdict for folder in _below(path) for verdict in _verdicts_of(folder))
    if not is_group and (not is_all or _is_run(path)):
        yield verify_run(path) if _is_run(path) else verify_models(path)


def _verdicts_of(folder: Path) -> Iterator[Verdict]:
    if (folder / "compare.json").is_file() or (folder / "tune.json").is_file():
        yield _verify_group(folder)
    if _is_run(folder):
        yield verify_run(folder)


def _below(path: Path) -> Iterator[Path]:
    """The folders below, without those that links lead to."""
    for folder in sorted(f for f in path.iterdir() if f.is_dir() and not f.is_symlink()):
        yield folder
        yield from _below(folder)


def _is_run(path: Path) -> bool:
    return any((path / name).is_file() for name in ("run.json", "metrics.jsonl"))


def _verify_group(path: Path) -> Verdict:
    """`compare.json`, or the files of a search."""
    verdict = Verdict(path)
    checks = {"compare.json": read_comparison, "tune.json": check_search}
    for name, check in checks.items():
        if (path / name).is_file():
            try:
                check(path)
                verdict.findings.append(Finding(name, "whole"))
            except RunError as error:
                verdict.findings.append(Finding(name, "damaged", str(error)))
    return verdict


def _words(verdict: Verdict) -> str:
    """A headline, a line per file that is not whole, and what can be done."""
    good = sum(finding.state == "whole" for finding in verdict.findings)
    old = sum(finding.state == "unsealed" for finding in verdict.findings)
    lines = [f"{verdict.path}: {'whole' if verdict.is_whole else 'damaged'}, {good} files verified"]
    if old:
        lines[0] += f", {old} readable, but of a version without checksums"
    lines += [
        f"  {finding.name} is {finding.state}: {finding.words}"
        for finding in verdict.findings
        if finding.state in ("damaged", "missing")
    ]
    return "\n".join(lines + [f"  {words}" for words in verdict.recover])


def _as_json(verdict: Verdict) -> dict[str, object]:
    return {
        "folder": str(verdict.path),
        "whole": verdict.is_whole,
        "files": [finding._asdict() for finding in verdict.findings],
        "recover": verdict.recover,
    }
