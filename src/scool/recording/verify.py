"""Is a run folder whole? Every file against its seal, its identity and the manifest."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from scool.errors import RunError
from scool.recording.checkpoint import part_names
from scool.recording.clients import NAME as CLIENTS
from scool.recording.clients import read_clients
from scool.recording.disk import TEMPORARY
from scool.recording.folder import METRICS, TIMING, RunFolder, checkpoint_name, graph_name, is_run
from scool.recording.models import FIXED, read_fixed, read_model
from scool.recording.seals import MANIFEST, SEAL, read_manifest, whole_file

State = Literal["whole", "damaged", "missing", "unsealed"]


class Finding(NamedTuple):
    """One file."""

    name: str
    state: State
    """`unsealed`: readable, but of a version that wrote no checksums."""
    words: str = ""


@dataclass
class Verdict:
    """The findings in a folder."""

    path: Path
    findings: list[Finding] = field(default_factory=list)
    recover: list[str] = field(default_factory=list)
    """What can be recovered from what is whole."""

    @property
    def is_whole(self) -> bool:
        return all(finding.state in ("whole", "unsealed") for finding in self.findings)

    def add(self, name: str, error: Exception | None, is_sealed: bool) -> None:
        """Note one file: whole, or what an error says of it."""
        if error is None:
            self.findings.append(Finding(name, "whole" if is_sealed else "unsealed"))
            return
        cause = error.__cause__ if isinstance(error, RunError) and error.__cause__ else error
        if isinstance(cause, FileNotFoundError):
            self.findings.append(Finding(name, "missing", "it was written, and is gone"))
        else:
            words = cause.strerror if isinstance(cause, OSError) else str(cause)
            self.findings.append(Finding(name, "damaged", words or "it cannot be read"))


def verify_run(path: Path) -> Verdict:
    """Read every record of a run, and compare it with what was written.

    Raises:
        RunError: it is not a run folder.
    """
    if not is_run(path):
        raise RunError(f"{path} is not a run folder: it has no run.json")
    folder, verdict = RunFolder(path), Verdict(path)
    header, error = {}, None
    try:
        header = folder.header
    except RunError as caught:
        error = caught
    is_sealed = folder.run is not None
    verdict.add("run.json", error, is_sealed)
    is_over = header.get("status") in ("finished", "interrupted")
    _add_manifest(folder, is_over and is_sealed, verdict)
    for name in dict.fromkeys((METRICS, TIMING, *folder.listed.logs)):
        _add_log(folder, name, header.get("status") == "finished", verdict)
    try:
        for name, error in _tensor_files(folder):
            verdict.add(name, error, is_sealed)
    except RunError as error:  # the folder of the graphs is a link
        verdict.add("graphs", error, True)
    verdict.recover = _recoverable(folder, verdict)
    return verdict


def verify_models(path: Path) -> Verdict:
    """The models that `scool export` wrote.

    Raises:
        RunError: there are none.
    """
    files = sorted(
        f for place in (path, path / "models") for f in place.glob("client-*.safetensors")
    )
    if not files:
        raise RunError(f"{path} holds neither a run, nor a comparison, nor exported models")
    verdict, listed = Verdict(path), dict[str, str]()
    try:
        manifest = read_manifest(path)
        listed = manifest.files if manifest else {}
        if manifest is None:
            verdict.recover.append(f"there is no {MANIFEST}, so nobody can tell what is missing")
    except (OSError, ValueError) as error:
        verdict.add(MANIFEST, error, True)
    for name in sorted({*listed, *(str(file.relative_to(path)) for file in files)}):
        verdict.add(name, *_check_exported(path / name, listed.get(name)))
    return verdict


def _check_exported(path: Path, listed: str | None) -> tuple[Exception | None, bool]:
    """What is wrong with a file that was exported, and whether it has a checksum."""
    try:
        if listed and listed.startswith("file:"):
            if whole_file(path) != listed:
                raise ValueError("its bytes are not those that were written")
            return None, True
        return None, SEAL in read_model(path, listed)[1]
    except (OSError, ValueError, RunError) as error:
        return error, True


def _add_manifest(folder: RunFolder, is_needed: bool, verdict: Verdict) -> None:
    try:
        manifest = read_manifest(folder.path)
    except (OSError, ValueError) as error:
        verdict.add(MANIFEST, error, True)
        return
    if manifest is None and is_needed:
        verdict.add(MANIFEST, FileNotFoundError(), True)
    elif manifest is not None and folder.run is not None and manifest.run != folder.run:
        verdict.add(MANIFEST, ValueError("it and run.json are of different runs"), True)
    elif manifest is not None:
        verdict.add(MANIFEST, None, True)


def _add_log(folder: RunFolder, name: str, is_finished: bool, verdict: Verdict) -> None:
    try:
        found = folder.lines(name)
    except RunError as error:
        verdict.add(name, error, True)
        return
    count, _ = folder.listed.logs.get(name, (0, ""))
    if not (folder.path / name).exists():
        if count or is_finished:
            verdict.add(name, FileNotFoundError(), True)
        return
    is_harmless = found.is_cut and not is_finished  # the run is writing, or was killed in that line
    flaw = None if is_harmless or not found.flaw else ValueError(found.flaw)
    verdict.add(name, flaw, folder.run is not None)


def _tensor_files(folder: RunFolder) -> Iterator[tuple[str, Exception | None]]:
    """Every file of tensors that exists or must exist, and what is wrong with it."""
    listed = folder.listed.files
    for name, read in ((CLIENTS, read_clients), (FIXED, read_fixed)):
        if (folder.path / name).exists() or name in listed:
            yield name, _error_of(lambda read=read: read(folder))
    for t, file in folder.graph_files().items():
        if file.exists() or graph_name(t) in listed:
            yield graph_name(t), _error_of(lambda t=t: folder.read_graph(t))
    for rounds in sorted(folder.checkpoints()):
        for name in (checkpoint_name(rounds), *part_names(folder.path, rounds)):
            yield name, _error_of(lambda name=name, n=rounds: folder.read_state(name, n))
    for name in sorted(set(listed)):
        if name.startswith("shard-") and not (folder.path / name).exists():
            yield name, FileNotFoundError()


def _error_of(read: Callable[[], object]) -> Exception | None:
    try:
        read()
    except (RunError, OSError, ValueError) as error:
        return error
    return None


def _recoverable(folder: RunFolder, verdict: Verdict) -> list[str]:
    """What can be done with what is whole, in words."""
    path, words = folder.path, list[str]()
    bad = {f.name: f for f in verdict.findings if f.state in ("damaged", "missing")}
    whole = [
        n for n in folder.checkpoints() if _error_of(lambda n=n: folder.load_checkpoint(n)) is None
    ]
    recorded = 0
    with suppress(RunError):  # it cannot be opened
        recorded = len(folder.rows())
    if left := [file for place in (path, path / "graphs") for file in place.glob(TEMPORARY)]:
        words.append(
            f"{len(left)} files that a kill left half written; `scool resume` deletes them"
        )
    if not bad:
        return words
    if "run.json" in bad:
        words.append("without run.json neither models nor the run can be used: bring back a copy")
        return words
    if whole:
        words.append(f"`scool export {path}` gives the models of round {whole[0]}")
    usable = [n for n in whole if n <= recorded]
    if usable:
        words.append(f"`scool resume {path}` continues from round {usable[0]}")
    else:
        words.append(f"`scool rerun {path}` repeats the run in a new folder")
    return words
