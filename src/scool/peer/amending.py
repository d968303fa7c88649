"""How a run gets another member: one proposes, all sign one file, and whoever has it with all
signatures lets the newcomer in."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from scool.errors import ConfigError, ScoolError, require
from scool.peer.agreement import NAME as AGREEMENT
from scool.peer.agreement import Agreement, Member, check_addresses
from scool.peer.amendment import with_members
from scool.peer.editions import PENDING, Editions, is_remembered, next_number, remember
from scool.peer.farewells import keep_farewells, read_farewells
from scool.peer.identity import (
    DAYS,
    Files,
    Keys,
    Wanted,
    fingerprint,
    is_of,
    new_authority,
    read_key,
    sign_leaf,
)
from scool.peer.invite import Invite
from scool.peer.leaving import check_not_left, check_open
from scool.peer.owner import (
    MEMBERS,
    Owner,
    Settings,
    open_owner,
    read_bytes,
    sign,
    write_signatures,
)
from scool.recording.disk import write_bytes


def propose(owner: Owner, requests: Sequence[Wanted], days: int = DAYS) -> Invite:
    """The next edition of the agreement of a run, signed by the owner who proposes it.

    The newcomers' certificates are of an authority of their own, whose key is not kept: nobody can
    issue another one with it.

    Raises:
        ConfigError: says what is not possible.
    """
    require(0 < days <= 366, "days", days, "give 1 to 366")
    check_not_left(owner.folder)
    check_open(owner)
    names = [wanted.name for wanted in requests]
    if len(set(names)) < len(names):
        raise ConfigError(f"two requests have the same name ({', '.join(names)}): rename one")
    before, farewells = owner.agreement, read_farewells(owner.folder)
    asked = [Member(w.name, w.address, "") for w in requests]
    check_addresses([*(m for m in before.members if m.name not in farewells), *asked])
    edition = next_number(owner.folder, before)
    with_members(before, asked, edition)  # refuses first
    key, authority = new_authority(f"{before.run} {edition}", days)
    new = {wanted.name: sign_leaf(wanted, key, authority, days) for wanted in requests}
    members = [Member(w.name, w.address, fingerprint(new[w.name])) for w in requests]
    known = {name: read_bytes(owner.folder / MEMBERS / f"{name}.pem") for name in before.names}
    proposed = Invite(
        with_members(before, members, edition),
        read_bytes(Files.of(owner.folder).authority) + authority,
        known | new,
        (*owner.earlier, before),
        farewells=farewells,
    )
    proposed.check()
    return signed(owner.folder, owner.name, proposed)


class Amendment(NamedTuple):
    """A new edition as a member, or the newcomer, reads it."""

    folder: Path
    name: str
    invite: Invite

    @property
    def newcomers(self) -> tuple[Member, ...]:
        return self.invite.agreement.members[len(self.invite.earlier[-1].members) :]

    @property
    def is_in_force(self) -> bool:
        """In this folder."""
        is_here = is_member(self.folder)
        return is_here and Agreement.read(self.folder) == self.invite.agreement

    @property
    def is_signed(self) -> bool:
        """By this owner, who has not withdrawn the signature."""
        is_there = self.name in self.invite.signatures
        return is_there and is_remembered(self.folder, self.invite.agreement)

    def terms(self) -> list[str]:
        """What the member agrees to, line by line."""
        agreement, signatures = self.invite.agreement, self.invite.signatures
        return [
            f"run {agreement.run}, edition {agreement.edition} of the agreement: it adds",
            *(f"  {new.name}  {new.address}  {new.leaf[:23]}..." for new in self.newcomers),
            *self._growth,
            "and changes nothing else. Newcomers get and give what all members do: models, losses",
            f"signed by: {', '.join(n for n in agreement.names if n in signatures) or 'nobody'}",
            *(f"{name} has left for good, and need not sign" for name in self.invite.farewells),
        ]

    @property
    def _growth(self) -> list[str]:
        before, now = self.invite.earlier[-1].capacity, self.invite.agreement.capacity
        return [f"for whom the graph grows from {before} to {now} places,"] * (now > before)

    def sign(self) -> "Amendment":
        """With the own signature, which is remembered.

        Raises:
            ConfigError: this owner has signed another edition with this number.
        """
        return self._replace(invite=signed(self.folder, self.name, self.invite))

    def adopt(self) -> None:
        """From now on the newcomers may come here; a peer that runs takes it up after its round.
        The agreement is written last: until then everything is as it was.

        Raises:
            ConfigError: this owner has withdrawn its signature, and signed another.
        """
        invite, folder = self.invite, self.folder
        remember(folder, invite.agreement)
        for new in self.newcomers:
            write_bytes(folder / MEMBERS / f"{new.name}.pem", invite.leaves[new.name])
        write_bytes(Files.of(folder).authority, invite.authority)
        known = open_owner(folder).signatures
        write_signatures(
            folder, known | {n.name: invite.signatures[n.name] for n in self.newcomers}
        )
        Editions(invite.earlier, invite.signatures, invite.farewells).write(
            folder, invite.agreement.edition
        )
        keep_farewells(folder, invite.farewells)
        invite.agreement.write(folder)


def consider_amendment(folder: Path, path: Path) -> Amendment:
    """Read a new edition as the owner of a folder, with the signatures that have come here before.

    Raises:
        ScoolError: says what does not fit, and what to do. Nothing has been changed.
    """
    settings, invite = Settings.read(folder), Invite.read(path)
    if not invite.earlier:
        raise ConfigError(f"{path} is an invite, not an amendment of an agreement")
    if is_member(folder):
        _check_follows(open_owner(folder), invite, path)
    elif settings.name not in invite.agreement.names:
        raise ConfigError(
            f"{path} is not for {settings.name}: it adds members to a run that is not in {folder}"
        )
    invite = invite._replace(farewells={**read_farewells(folder), **invite.farewells})
    with contextlib.suppress(ScoolError):  # there is none, or of an edition that is long in force
        known = Invite.read(folder / PENDING)
        if known.agreement == invite.agreement:
            invite = invite._replace(
                signatures={**known.signatures, **invite.signatures},
                farewells={**known.farewells, **invite.farewells},
            )
    return Amendment(folder, settings.name, invite)


def is_member(folder: Path) -> bool:
    """Whether the owner of a folder has joined a run."""
    return (folder / AGREEMENT).exists()


def _check_follows(owner: Owner, invite: Invite, path: Path) -> None:
    """Raises:
    ScoolError: it is not the next edition of the owner's agreement, nor that which is in force.
    """
    check_not_left(owner.folder)
    check_open(owner)
    own: Agreement = owner.agreement
    new = invite.agreement
    if new == own:
        return
    if new.run != own.run:
        raise ConfigError(f"{path} is of run {new.run}, and {owner.folder} takes part in {own.run}")
    if invite.earlier[-1] != own:
        raise ConfigError(
            f"{path} amends edition {invite.earlier[-1].edition} of the agreement as its maker has "
            f"it, and that in {owner.folder} is edition {own.edition}: sign the same one as all "
            "others, and those between first"
        )


def signed(folder: Path, name: str, invite: Invite) -> Invite:
    """With the signature of the owner of a folder, if it is not there yet; kept in the folder, too.

    Raises:
        ConfigError: the owner cannot sign it, or has signed another.
    """
    key = read_bytes(Files.of(folder).key)
    if not is_of(read_key(key), invite.leaves[name]):
        raise ConfigError(f"the certificate of {name} in the file is not for the key here")
    remember(folder, invite.agreement)  # also what was withdrawn, and is in the file
    if name not in invite.signatures:
        leaves = [invite.leaves[other] for other in invite.agreement.names]
        keys = Keys(key, leaves, invite.agreement.place_of(name))
        own = {name: sign(invite.agreement, keys)}
        invite = invite._replace(signatures={**invite.signatures, **own})
    invite.write(folder / PENDING)
    return invite
