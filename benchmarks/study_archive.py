"""`runs.tar.xz`: the raw runs of a study in one file, and where studies and raw runs lie."""

import hashlib
import io
import lzma
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from study_table import HEADER, Files, RecordsError, header_of, run_folders

COLLECTIONS = ("reproduction",)
"""Folders whose sub-folders are studies."""
ARCHIVE, CHECKSUM, TABLE = "runs.tar.xz", "runs.tar.xz.sha256", "runs.csv"
OVER = ("finished", "diverged")
LARGEST = 8 * 2**20
"""Bytes of a file in a record. Models and checkpoints are larger and do not belong there."""
SKIPPED = re.compile(r"__pycache__|\..*|.*\.(lock|tmp|part)")
"""Names of what programs leave behind."""


# ---------------------------------------------------------------------- studies and their files


def find_studies(root: Path) -> list[Path]:
    """Folders that have an archive or what belongs to one, or runs that wait for one."""
    places = [place for place in _folders(root) if place.name not in COLLECTIONS]
    for name in COLLECTIONS:
        places += _folders(root / name)
    marks = (ARCHIVE, CHECKSUM, TABLE, f"*/**/{HEADER}")
    return [p for p in places if any(next(p.glob(mark), None) for mark in marks)]


def _folders(place: Path) -> list[Path]:
    if not place.is_dir():
        return []
    found = [f for f in place.iterdir() if f.is_dir() and not f.is_symlink()]
    return sorted(f for f in found if not SKIPPED.fullmatch(f.name))


def raw_files(study: Path) -> Iterator[Path]:
    """What lies in the sub-folders of a study."""
    for folder in _folders(study):
        for place, inside, names in os.walk(folder):
            names += [name for name in inside if (Path(place) / name).is_symlink()]
            inside[:] = sorted(n for n in inside if not SKIPPED.fullmatch(n) and n not in names)
            yield from (Path(place) / n for n in sorted(names) if not SKIPPED.fullmatch(n))


def read_in_place(study: Path) -> Files:
    """The raw runs of a study as they lie there.

    Raises:
        RecordsError: a run is not over, or a file does not belong in a record.
    """
    files: Files = {}
    for path in raw_files(study):
        name = path.relative_to(study).as_posix()
        if path.is_symlink() or not path.is_file():
            raise RecordsError(f"{name} is not a plain file: remove it")
        size = path.stat().st_size
        if size > LARGEST:
            raise RecordsError(f"{name} has {size / 1e6:.0f} MB: models are not kept, remove it")
        files[name] = path.read_bytes()
    for folder in run_folders(files):
        status = header_of(folder, files).get("status")
        if status not in OVER:
            raise RecordsError(f"{folder} is {status}: resume it, or remove it")
    return files


# ---------------------------------------------------------------------- archives


def as_archive(files: Files) -> bytes:
    """A compressed tar file that depends on names and contents alone. Files of one name stand
    together, because they compress best that way."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(files, key=lambda name: (PurePosixPath(name).name, name)):
            member = tarfile.TarInfo(name)  # owner, group and time are zero
            member.size = len(files[name])
            tar.addfile(member, io.BytesIO(files[name]))
    return lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def write_archive(study: Path, files: Files) -> None:
    """The archive and its checksum, in the format of `sha256sum`."""
    content = as_archive(files)
    write(study / ARCHIVE, content)
    write(study / CHECKSUM, f"{hashlib.sha256(content).hexdigest()}  {ARCHIVE}\n".encode())


def write(path: Path, content: bytes) -> None:
    """A file that is whole, and on the disk before anything is deleted."""
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def read_archive(study: Path, into: Path | None = None) -> Files:
    """What the archive of a study holds.

    Args:
        into: where it is going to be unpacked, if not in place.

    Raises:
        RecordsError: it does not match its checksum, or a name in it leads out of the study.
    """
    if not hasattr(tarfile, "data_filter"):
        raise RecordsError("archives are read by Python 3.11.4 or newer")
    try:
        content, noted = (study / ARCHIVE).read_bytes(), (study / CHECKSUM).read_text().split()
    except OSError as error:
        name = Path(error.filename).name
        raise RecordsError(f"{name} cannot be read: {error.strerror}") from error
    if noted != [hashlib.sha256(content).hexdigest(), ARCHIVE]:
        remedy = "take both files from git again (`git checkout`)"
        raise RecordsError(f"{ARCHIVE} does not match {CHECKSUM}: {remedy}")
    files: Files = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:xz") as tar:
            for member in tar:
                _check_member(member, into or study, files)
                file = tar.extractfile(member)
                assert file is not None  # it is a regular file
                files[member.name] = file.read()
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise RecordsError(f"{ARCHIVE} is refused: {error}") from error
    return files


def _check_member(member: tarfile.TarInfo, into: Path, files: Files) -> None:
    """Refuse what is not a plain file in a sub-folder of the study."""
    safe = tarfile.data_filter(member, str(into))
    parts = PurePosixPath(member.name).parts
    is_plain = member.type == tarfile.REGTYPE and safe.name == member.name == "/".join(parts)
    if not is_plain or ".." in parts or len(parts) < 2 or member.name in files:
        raise tarfile.TarError(f"{member.name!r} is not a plain file of a run, or is there twice")
