"""`scool verify DIR`: whether records are whole, and what can be recovered."""

import json as json_module
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from scool.errors import RunError, printable
from scool.recording.folder import is_run
from scool.recording.verify import Finding, Verdict, verify_models, verify_run
from scool.sweep.compare import check_comparison
from scool.sweep.search_folder import check_search


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
    good, broken = 0, 0
    for verdict in (v for path in command.folders for v in _verdicts(path, command.all)):
        words = json_module.dumps(_as_json(verdict)) if command.json else printable(_words(verdict))
        print(words, flush=True)
        good, broken = good + verdict.is_whole, broken + (not verdict.is_whole)
    if not command.json and good + broken > 1:
        print(f"{good} of {good + broken} folders are whole")
    return 2 if broken else 0


def _verdicts(path: Path, is_all: bool) -> Iterator[Verdict]:
    """One verdict per folder that holds records."""
    if not path.is_dir():
        raise RunError(f"folder = {str(path)!r} is not a folder: give a run or a comparison")
    folders = [path, *_below(path)] if is_all or _is_group(path) else [path]
    found = False
    for folder in folders:
        if folder == path or not (folder.name == "models" and _has_models(folder.parent)):
            for verdict in _verdicts_of(folder):
                found = True
                yield verdict
    if not found:
        raise RunError(f"{path} holds neither a run, nor a comparison, nor exported models")


def _verdicts_of(folder: Path) -> Iterator[Verdict]:
    """What is in this folder. No content, however crafted, stops the other folders from being
    checked."""
    for is_there, check in (
        (_is_group(folder), _verify_group),
        (is_run(folder), verify_run),
        (not is_run(folder) and _has_models(folder), verify_models),
    ):
        if is_there:
            try:
                verdict = check(folder)
            except Exception as error:
                words = str(error) if isinstance(error, RunError) else repr(error)
                verdict = Verdict(folder, [Finding(folder.name, "damaged", words)])
            yield verdict


def _below(path: Path) -> Iterator[Path]:
    """The folders below. Links are named and not followed."""
    for folder in sorted(f for f in path.iterdir() if f.is_dir()):
        if folder.is_symlink():
            warnings.warn(f"{folder} is a link and is not followed", stacklevel=2)
        else:
            yield folder
            yield from _below(folder)


def _is_group(path: Path) -> bool:
    return any((path / name).is_file() for name in ("compare.json", "tune.json"))


def _has_models(path: Path) -> bool:
    return any(any(place.glob("client-*.safetensors")) for place in (path, path / "models"))


def _verify_group(path: Path) -> Verdict:
    """`compare.json`, or the files of a search."""
    verdict = Verdict(path)
    checks = {"compare.json": check_comparison, "tune.json": check_search}
    for name, check in checks.items():
        if (path / name).is_file():
            try:
                check(path)
                verdict.findings.append(Finding(name, "whole"))
            except RunError as error:
                verdict.findings.append(Finding(name, "damaged", str(error)))
    return verdict


def _words(verdict: Verdict) -> str:
    """A headline, a line per file that is not whole, and what to do about it."""
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
