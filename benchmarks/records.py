"""Raw runs of the studies in this folder: packed in git, restored in place when they are needed.

    python benchmarks/records.py restore [STUDY ...]   raw run folders, where the pages expect them
    python benchmarks/records.py pack STUDY ...        run folders -> archive, checksum, table
    python benchmarks/records.py check                 do archives, checksums and tables agree?

A study is a folder of `benchmarks/`, or of `benchmarks/reproduction/`. Its files (notes, scripts,
results of a few lines) are in git as they are; its sub-folders hold raw runs, which git ignores.
`pack` puts those into `runs.tar.xz`, with `runs.tar.xz.sha256` and a table of one row per run,
`runs.csv`. It adds to what the archive holds, reads the result back from the disk, and only then
deletes the raw folders. To rename or drop a run: restore, delete the archive, change the folders,
pack.
"""

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from study_archive import (
    ARCHIVE,
    CHECKSUM,
    TABLE,
    find_studies,
    raw_files,
    read_archive,
    read_in_place,
    write,
    write_archive,
)
from study_table import HEADER, Files, RecordsError, as_table, disagreements, run_folders

ROOT = Path(__file__).resolve().parent


# ---------------------------------------------------------------------- pack


def pack(study: Path, replace: bool = False) -> str:
    """Put the runs that lie in a study into its archive, and delete them where they lie.

    Args:
        replace: a run that differs from the archived one takes its place.

    Raises:
        RecordsError: says what is in the way; nothing was deleted.
    """
    old = read_archive(study) if (study / ARCHIVE).exists() else {}
    new = read_in_place(study)
    files = merge(old, new, replace)
    if not files:
        raise RecordsError("it has neither raw runs nor an archive")
    if files != old:
        write_archive(study, files)
    write(study / TABLE, as_table(files).encode())
    if read_archive(study) != files:
        raise RecordsError(f"{ARCHIVE} was not written as it should be; nothing is deleted")
    if changed := [name for name in new if not _holds(study / name, files[name])]:
        raise RecordsError(f"{changed[0]} changed meanwhile; nothing is deleted")
    for name in new:
        (study / name).unlink()
    for folder in {PurePosixPath(name).parts[0] for name in new}:
        _remove_empty(study / folder)
    return f"{_counted(files)} in {(study / ARCHIVE).stat().st_size:,} bytes"


def merge(old: Files, new: Files, replace: bool = False) -> Files:
    """What an archive holds together with what lies in place, run by run.

    Raises:
        RecordsError: a run in place is not the archived one.
    """
    runs = set(run_folders([*old, *new]))
    mine, archived = _by_run(new, runs), _by_run(old, runs)
    both = mine.keys() & archived.keys()
    others = sorted(run for run in both if not mine[run].items() <= archived[run].items())
    broken = [run for run in others if run in runs and f"{run}/{HEADER}" not in new]
    if broken or (others and not replace):
        raise RecordsError(
            f"{', '.join(broken or others)}: what lies in place is not what is archived. Remove "
            "it, or let it take the place of the archived run by `pack --replace`"
        )
    gone = {name for run in others for name in archived[run]}
    return {name: content for name, content in old.items() if name not in gone} | new


def _by_run(files: Files, runs: set[str]) -> dict[str, Files]:
    """The files of each run; one that belongs to no run stands for itself."""
    found: dict[str, Files] = defaultdict(dict)
    for name, content in files.items():
        above = map(str, PurePosixPath(name).parents)
        found[next((folder for folder in above if folder in runs), name)][name] = content
    return found


def _remove_empty(folder: Path) -> None:
    for place, _, _ in os.walk(folder, topdown=False):
        if not any(Path(place).iterdir()):
            Path(place).rmdir()


# ---------------------------------------------------------------------- restore


def restore(study: Path, into: Path | None = None, below: str = "") -> str:
    """Unpack the archive of a study, in place unless told otherwise.

    Args:
        below: only this folder of the study.

    Raises:
        RecordsError: the archive is damaged, or a file that is there differs; nothing was written.
    """
    place = into or study
    if not any((study / name).exists() for name in (ARCHIVE, CHECKSUM, TABLE)):
        return "not packed yet, nothing to restore"
    archived = read_archive(study, place)
    files = {n: c for n, c in archived.items() if not below or n.startswith(f"{below}/")}
    if not files:
        raise RecordsError(f"{ARCHIVE} has no folder {below!r}")
    there = {name for name in files if os.path.lexists(place / name)}
    if others := sorted(name for name in there if not _holds(place / name, files[name])):
        raise RecordsError(
            f"{others[0]} differs from the archived file ({len(others)} files in all) and "
            "is not overwritten: remove it, or `pack --replace` its run"
        )
    for name in files.keys() - there:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        part = place / f"{ARCHIVE}.part"
        part.write_bytes(files[name])
        part.replace(place / name)
    return f"{_counted(files)}, {len(files)} files"


def _counted(files: Files) -> str:
    count = len(run_folders(files))
    return f"{count} run" if count == 1 else f"{count} runs"


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and not path.is_symlink() and path.read_bytes() == content


# ---------------------------------------------------------------------- check


def check(study: Path) -> list[str]:
    """What is wrong with the archive or the table of a study, or with raw runs beside them."""
    if not (study / ARCHIVE).exists():
        return ["it has no archive: pack its runs, or take the archive from git again"]
    try:
        files = read_archive(study)
        words = [w for folder in run_folders(files) for w in disagreements(folder, files)]
        is_true = (study / TABLE).is_file() and (study / TABLE).read_text() == as_table(files)
    except RecordsError as error:
        return [str(error)]
    words += [] if is_true else [f"{TABLE} does not agree with the archive: pack the study again"]
    there = {path.relative_to(study).as_posix(): path for path in raw_files(study)}
    new = [name for name in there if name not in files]
    others = [name for name in there if name in files and not _holds(there[name], files[name])]
    words += [f"{new[0]} is not archived ({len(new)} files): pack the study"] if new else []
    words += [f"{others[0]} differs from the archive ({len(others)} files)"] if others else []
    return words


# ---------------------------------------------------------------------- command line


def chosen(words: Sequence[str], root: Path) -> list[tuple[Path, str]]:
    """The studies that are meant, each with the folder in it; all studies if there are no words.

    Raises:
        RecordsError: a word is neither a study, nor a folder of studies, nor one in a study.
    """
    studies = find_studies(root)
    found: list[tuple[Path, str]] = []
    for word in words or [str(root)]:
        places = [Path(os.path.abspath(word)), Path(os.path.abspath(root / word))]
        hits = [(s, "") for s in studies if any(s.is_relative_to(place) for place in places)]
        hits += [
            (s, p.relative_to(s).as_posix()) for s in studies for p in places if s in p.parents
        ]
        if not hits:
            raise RecordsError(f"{word} is not a study: it has no {ARCHIVE} and no run folders")
        found += hits
    return list(dict.fromkeys(found))


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="records.py", description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("pack", help="raw runs into archives; deletes them afterwards")
    one.add_argument("studies", nargs="+", metavar="STUDY")
    one.add_argument("--replace", action="store_true", help="also runs that differ from archived")
    one = commands.add_parser("restore", help="raw runs from archives, in place")
    one.add_argument("studies", nargs="*", metavar="STUDY", help="default: all; or a folder in one")
    commands.add_parser("check", help="do archives, checksums and tables agree?")
    given = parser.parse_args(words)
    try:
        places = chosen(getattr(given, "studies", ()), ROOT)
    except RecordsError as error:
        parser.error(str(error))
    return max([_said(given, study, below) for study, below in places])


def _said(given: argparse.Namespace, study: Path, below: str) -> int:
    """Do a command with one study, and say how it went."""
    try:
        if given.command == "restore":
            words, is_wrong = restore(study, below=below), False
        elif given.command == "pack":
            if below:
                raise RecordsError(f"{below} is not a study but a part of one: pack it as a whole")
            words, is_wrong = pack(study, given.replace), False
        else:
            wrong = check(study)
            words, is_wrong = "\n  ".join(wrong) or "as it should be", bool(wrong)
    except (RecordsError, OSError) as error:
        words, is_wrong = str(error), True
    print(f"{os.path.relpath(study)}: {words}", file=sys.stderr if is_wrong else sys.stdout)
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
