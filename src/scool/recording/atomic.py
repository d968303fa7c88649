"""Files that are either old or new, never half."""

import errno
import json
import os
import secrets
from pathlib import Path
from typing import Any

from scool.errors import RunError


def write_bytes(path: Path, content: bytes) -> None:
    """Write beside the target, flush to disk, then rename over it.

    Raises:
        RunError: the disk refuses; what was there before is untouched.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "Free some space or choose another --out" if is_full else "Choose another --out"
        raise RunError(
            f"cannot write {path}: {error.strerror}. {remedy}; what was written before is intact"
        ) from error


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())
