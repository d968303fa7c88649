"""`manifest.json`: what a run folder must hold. Written after the files that it names.

A name in it stands for a file that is on the disk for good; what is newer than the manifest is
verified by its own seal. A file is taken off the list before it is deleted or replaced, so a crash
at any moment leaves a list that is true.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from scool.recording.damage import check_format
from scool.recording.disk import MIB, open_plain, read_text, write_json
from scool.recording.lines import BOOL, COUNT, OBJECT, RUN, TEXT, check_kinds
from scool.recording.seals import check_seal, with_seal

NAME = "manifest.json"
FORMAT = "scool-manifest-1"


@dataclass
class Manifest:
    """Seals by name."""

    run: str
    files: dict[str, str] = field(default_factory=dict)
    """The seal of each file of tensors; of files of older versions `file:` and their SHA-256."""
    logs: dict[str, tuple[int, str]] = field(default_factory=dict)
    """How many lines of each log were written, and the seal of the last."""
    older: bool = False
    """Whether the folder was begun by a version that sealed nothing."""

    def write(self, folder: Path) -> None:
        logs = {name: {"lines": lines, "seal": seal} for name, (lines, seal) in self.logs.items()}
        about = {"format": FORMAT, "run": self.run, "files": self.files, "logs": logs}
        about |= {"older": True} if self.older else {}
        write_json(folder / NAME, with_seal(about))


def read_manifest(folder: Path) -> Manifest | None:
    """The list of a folder; None where there is none.

    Raises:
        ValueError: it is damaged, or of another version; says how.
        OSError: it cannot be read.
    """
    try:
        values = json.loads(read_text(folder / NAME))
    except FileNotFoundError:
        return None
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    check_kinds(values, {"format": TEXT})
    check_format(values["format"], FORMAT)
    kinds = {"run": RUN, "files": OBJECT, "logs": OBJECT, "older": BOOL}
    check_kinds(values, kinds, optional=["older"])
    check_seal(values)
    check_kinds(values["files"], dict.fromkeys(values["files"], TEXT))
    logs: dict[str, tuple[int, str]] = {}
    for name, log in values["logs"].items():
        check_kinds({"log": name}, {"log": TEXT})
        check_kinds(log, {"lines": COUNT, "seal": TEXT})
        logs[name] = log["lines"], log["seal"]
    return Manifest(values["run"], values["files"], logs, values.get("older", False))


def whole_file(path: Path) -> str:
    """The entry of a file that has no seal of its own."""
    with open_plain(path) as file:
        sha = hashlib.sha256()
        while part := file.read(16 * MIB):
            sha.update(part)
    return f"file:{sha.hexdigest()}"
