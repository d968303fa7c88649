"""Members that have left for good, as anybody can check: the record that each of them signed."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from scool.errors import ConfigError
from scool.peer.agreement import Agreement
from scool.peer.identity import is_signed
from scool.peer.post import LEFT
from scool.peer.wire import WireError, read_header
from scool.recording.disk import write_bytes

NAME = "farewells.json"  # in an owner's folder: name -> header and signature, hexadecimal


def keep_farewells(folder: Path, records: Mapping[str, str]) -> None:
    """Remember the records with which members left: they need not sign for newcomers any more, and
    nobody waits for them after a restart."""
    known = read_farewells(folder)
    if records.keys() - known.keys():
        write_bytes(folder / NAME, json.dumps({**records, **known}, indent=2).encode())


def read_farewells(folder: Path) -> dict[str, str]:
    """What is known in a folder; nothing where the file is missing or damaged."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return dict(json.loads((folder / NAME).read_bytes()))
    return {}


def check_farewells(
    agreement: Agreement, leaves: Mapping[str, bytes], farewells: Mapping[str, str]
) -> None:
    """Refuse what is no record of this run with which its member left.

    Raises:
        ConfigError: names the member.
    """
    for name, record in farewells.items():
        if not _is_farewell(agreement, leaves, name, record):
            raise ConfigError(
                f"what is given as the farewell of {str(name)[:40]!r} is none: the file was "
                "changed. Ask for it again"
            )


def _is_farewell(
    agreement: Agreement, leaves: Mapping[str, bytes], name: str, record: object
) -> bool:
    try:
        signed = bytes.fromhex(str(record))
        end = json.JSONDecoder().raw_decode(signed.decode("latin-1"))[1]
        said = read_header(signed[:end])
    except (ValueError, RecursionError, WireError):
        return False
    is_right = name in agreement.names and (said["run"], said["sender"], said["slot"]) == (
        agreement.run,
        agreement.place_of(name),
        LEFT,
    )
    return is_right and is_signed(leaves[name], signed[:end], signed[end:])
