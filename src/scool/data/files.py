"""Data files a person put on disk: whole and unaltered, or a message that says what to do."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from scool.errors import DataError


@dataclass(frozen=True)
class DataFile:
    """One file of a dataset and what it must be."""

    name: str
    size: int | None = None  # bytes
    md5: str | None = None  # of the official file, where one is published


def read_file(folder: Path, file: DataFile, remedy: str, *, verify: bool = True) -> bytes:
    """The content of a file that is there and is the official one.

    Args:
        folder: where it lies.
        file: what it must be.
        remedy: what to do when it is not, the end of every message.
        verify: False reads a file of any size and content.

    Raises:
        DataError: it is missing, truncated or altered.
    """
    path = folder / file.name
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} is missing: {remedy}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): {remedy}") from None
    if verify and file.size is not None and len(content) != file.size:
        raise DataError(
            f"{path} is truncated or not the official file: expected {file.size:,} bytes, "
            f"found {len(content):,}: {remedy}"
        )
    if verify and file.md5 is not None:
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found != file.md5:
            raise DataError(f"{path} was altered: expected MD5 {file.md5}, found {found}: {remedy}")
    return content
