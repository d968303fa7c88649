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
WITHDRAWN = "withdrawn "
PENDING = "pending.invite"  # the edition it has signed, as far as all have


class Editions(NamedTuple):
    """What a folder knows of the editions before the one that is in force there."""

    earlier: tuple[Agreement, ...] = ()
    signatures: Mapping[str, str] = {}  # under the edition in force
    farewells: Mapping[str, str] = {}  # of members that had left before

    def write(self, folder: Path, number: int) -> None:
        """`number` is that of the edition in force."""
        content = {
            "earlier": [edition.as_dict() for edition in self.earlier],
            "signatures": dict(self.signatures),
            "farewells": dict(self.farewells),
        }
        path = folder / NAME.format(number)
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
    """Note that this owner signs an edition. Of those that could follow the one in force it signs
    one, and after that only ones with a higher number, once it has withdrawn what it signed: so no
    place can have two owners.

    Raises:
        ConfigError: it has signed another.
    """
    known, now = _signed(folder, agreement.run), agreement.edition
    last = max(known, default=0)
    in_force = Agreement.read(folder).edition if (folder / AGREEMENT).exists() else last
    same = known.get(last, "").removeprefix(WITHDRAWN) == agreement.sha256
    is_open = last <= in_force or known[last].startswith(WITHDRAWN)
    if now > last and not is_open:
        raise ConfigError(
            f"this owner has signed edition {last} of the agreement already, which is not in force "
            "yet, and two could give one place to two owners. "
            f"{folder / PENDING} is the file as this owner has it: ask who lacks there to sign, or "
            f"withdraw it with `scool peer amend {folder} --withdraw`"
        )
    if now < last or (now == last and not same):
        raise ConfigError(
            f"this owner has signed another edition {last} of the agreement already, and two could "
            "give one place to two owners: all members sign the same one. Where some have taken "
            "up this one and others have signed that one, the run can take in nobody more: make a "
            "new agreement. Else all who have signed withdraw it (`scool peer amend "
            f"{folder} --withdraw`), and one of them proposes anew"
        )
    _note(folder, agreement.run, now, agreement.sha256)


def is_remembered(folder: Path, agreement: Agreement) -> bool:
    """Whether this owner has signed an edition, and has not withdrawn it."""
    return _signed(folder, agreement.run).get(agreement.edition) == agreement.sha256


def next_number(folder: Path, agreement: Agreement) -> int:
    """Of a proposal: above all that this owner has signed, also what it has withdrawn."""
    return max([agreement.edition, *_signed(folder, agreement.run)]) + 1


def withdraw(folder: Path, agreement: Agreement) -> int:
    """Let go of what this owner has signed and that is not in force; its number.

    Others may still hold the signature. That is safe where all members must sign: a later proposal
    has a higher number and needs this owner, who then takes up nothing with a lower one; and who
    has taken up the old one does not sign the new one. Where most are enough, some could complete
    the old one and some the new one.

    Raises:
        ConfigError: there is none, or it could be in force without this owner.
    """
    known = _signed(folder, agreement.run)
    last = max(known, default=0)
    if last <= agreement.edition or known[last].startswith(WITHDRAWN):
        raise ConfigError(
            f"there is nothing to withdraw: {folder} has signed no edition of the agreement that "
            "is not in force"
        )
    if agreement.signers == "most":
        raise ConfigError(
            "a signature cannot be withdrawn with signers = 'most': some members could let in one "
            f"newcomer with it, and some another. Ask who lacks in {folder / PENDING} to sign, or "
            "make a new agreement"
        )
    _note(folder, agreement.run, last, WITHDRAWN + known[last])
    (folder / PENDING).unlink(missing_ok=True)
    return last


def _signed(folder: Path, run: str) -> dict[int, str]:
    """By number, the hashes of the editions of a run that this owner has signed."""
    every = _read_signed(folder / SIGNED)
    return {int(n.rpartition("/")[2]): h for n, h in every.items() if n.startswith(f"{run}/")}


def _note(folder: Path, run: str, edition: int, content: str) -> None:
    found = _read_signed(folder / SIGNED) | {f"{run}/{edition}": content}
    write_bytes(folder / SIGNED, json.dumps(found, indent=2).encode())


def _read_signed(path: Path) -> dict[str, str]:
    try:
        return dict(json.loads(path.read_bytes())) if path.exists() else {}
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error}): bring back a copy") from error


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
