"""The editions of an agreement in an owner's folder: what this owner has signed, what is in force
here, and how a peer that runs takes up a new one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

from scool.errors import ConfigError, ScoolError
from scool.peer.agreement import NAME as AGREEMENT
from scool.peer.agreement import Agreement
from scool.peer.amendment import check_editions, check_signed, lacking
from scool.peer.farewells import check_farewells
from scool.recording.disk import write_bytes
from scool.types import Info

NAME = "edition-{}.json"  # of a later edition: those before, and who signed this one
SIGNED = "signed.json"  # which edition with a number this owner has signed: there is one
PENDING = "pending.invite"  # the edition it has signed, as far as all have


class Editions(NamedTuple):
    """What a folder knows of the editions before the one that is in force there."""

    earlier: tuple[Agreement, ...] = ()
    signatures: Mapping[str, str] = {}  # under the edition in force
    farewells: Mapping[str, str] = {}  # of members that had left before

    def write(self, folder: Path) -> None:
        content = {
            "earlier": [edition.as_dict() for edition in self.earlier],
            "signatures": dict(self.signatures),
            "farewells": dict(self.farewells),
        }
        path = folder / NAME.format(len(self.earlier) + 1)  # that of the edition in force stays
        write_bytes(path, json.dumps(content, indent=2).encode())

    @classmethod
    def read(cls, folder: Path, agreement: Agreement, leaves: Mapping[str, bytes]) -> "Editions":
        """Nothing for a first edition.

        Raises:
            ScoolError: what is there is damaged, or the edition is not in force.
        """
        if agreement.edition == 1:
            return cls()
        path = folder / NAME.format(agreement.edition)
        try:
            found = json.loads(path.read_bytes())
            rows = tuple(Agreement.of(row, path) for row in found["earlier"])
            signatures, farewells = dict(found["signatures"]), dict(found["farewells"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"{path} cannot be read ({error}): bring back a copy") from error
        earlier = tuple(row for row in rows if row.edition < agreement.edition)
        check_editions([*earlier, agreement])
        check_signed(agreement, leaves, signatures)
        check_farewells(agreement, leaves, farewells)
        if missing := lacking(earlier[-1], agreement, signatures, farewells):
            raise ConfigError(
                f"edition {agreement.edition} of the agreement lacks the signature of "
                f"{', '.join(missing)}: bring back a copy of {path}"
            )
        return cls(earlier, signatures, farewells)


def remember(folder: Path, agreement: Agreement) -> None:
    """Note that this owner signs an edition: a second one with its number it will not sign, so that
    no place can have two owners.

    Raises:
        ConfigError: it has signed another.
    """
    path, number = folder / SIGNED, f"{agreement.run}/{agreement.edition}"
    try:
        known = dict(json.loads(path.read_bytes())) if path.exists() else {}
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error}): bring back a copy") from error
    if known.setdefault(number, agreement.sha256) != agreement.sha256:
        raise ConfigError(
            f"this owner has signed another edition {agreement.edition} of the agreement already, "
            "and two could give one place to two owners: all members sign the same one. Ask them "
            f"which; {folder / PENDING} is the file as this owner has it"
        )
    write_bytes(path, json.dumps(known, indent=2).encode())


@final
class Watch:
    """A recorder that ends a run when a new edition is in force in the owner's folder, as Ctrl-C
    does; the peer comes back with it."""

    def __init__(self, folder: Path, agreement: Agreement) -> None:
        self._folder, self._agreement = folder, agreement
        self._seen: tuple[int, int, int] | None = None  # of the file that was looked at last
        self.newer = False

    def start(self, header: Mapping[str, Any], first_round: int) -> None:
        """Nothing to do."""

    def round(self, row: Mapping[str, Any], info: Info) -> None:
        if row["round"] + 1 < self._agreement.rounds:
            self.look()

    def end(self, result: Any) -> None:
        """Nothing more to wait for."""

    def look(self) -> None:
        """Raises:
        KeyboardInterrupt: there is a new edition.
        """
        if (stamp := _stamp(self._folder)) == self._seen:
            return
        self._seen = stamp
        try:
            found = Agreement.read(self._folder).edition
        except ScoolError:
            return  # the next start says what is wrong with it
        if found > self._agreement.edition:
            self.newer = True
            raise KeyboardInterrupt


def _stamp(folder: Path) -> tuple[int, int, int] | None:
    """What changes when another agreement takes the place of the one in a folder."""
    try:
        found = (folder / AGREEMENT).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
