"""Making a run: owners make keys at home, a founder signs their certificates and proposes an
agreement. What goes from one to the other is public: certificate requests, and one invite."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from scool.errors import ConfigError, RunError, require
from scool.peer.addresses import check_dialled
from scool.peer.agreement import Agreement, Member
from scool.peer.amendment import check_editions, check_signed, lacking
from scool.peer.authorities import check_authorities, check_leaf
from scool.peer.farewells import check_farewells
from scool.peer.identity import (
    DAYS,
    Files,
    Wanted,
    check_name,
    fingerprint,
    new_authority,
    new_key,
    pem,
    read_request,
    request,
    sign_leaf,
    write_key,
)
from scool.peer.owner import SETTINGS
from scool.peer.terms import Proposal, agree
from scool.recording.disk import write_bytes


def make_owner(folder: Path, name: str, address: str, data: str = "data.npz") -> Wanted:
    """A new folder with a private key, `peer.toml`, and the request that goes to the founder.

    Raises:
        ConfigError: a name, an address or the folder is not possible.
    """
    check_name(name)
    check_dialled(address)
    new_folder(folder)
    key = new_key()
    write_key(Files.of(folder).key, key)
    asked = pem(request(name, address, key))
    write_bytes(folder / f"{name}.request", asked)
    settings = f"name = {json.dumps(name)}\ndata = {json.dumps(data)}\n"  # as TOML writes it, too
    write_bytes(folder / SETTINGS, settings.encode())
    return read_request(asked)


def new_folder(folder: Path) -> None:
    """Make a folder, or take an empty one.

    Raises:
        ConfigError: something is there, or it cannot be made.
    """
    try:
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty: choose another folder, or another name")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"cannot make the folder {folder} ({error.strerror})"
        raise ConfigError(f"{why}: choose another one") from error


class Invite(NamedTuple):
    """An agreement to be signed, and the certificates of its members. Nothing of it is secret."""

    agreement: Agreement
    authority: bytes  # of a later edition: several, one after another
    leaves: Mapping[str, bytes]
    earlier: tuple[Agreement, ...] = ()  # editions, from the first on
    signatures: Mapping[str, str] = {}  # under a later edition, as far as they are there
    farewells: Mapping[str, str] = {}  # of members that left: they need not sign

    @property
    def lacking(self) -> list[str]:
        """Who must sign yet before a later edition is in force."""
        return lacking(self.earlier[-1], self.agreement, self.signatures, self.farewells)

    def write(self, path: Path) -> None:
        content = {
            "agreement": self.agreement.as_dict(),
            "authority": self.authority.decode(),
            "leaves": {name: leaf.decode() for name, leaf in self.leaves.items()},
        }
        if self.earlier:
            content["earlier"] = [edition.as_dict() for edition in self.earlier]
            content["signatures"] = dict(self.signatures)
            content["farewells"] = dict(self.farewells)
        write_bytes(path, json.dumps(content, indent=2).encode())

    @classmethod
    def read(cls, path: Path) -> "Invite":
        """Read an invite and check that it holds together, whoever made it.

        Raises:
            ScoolError: it cannot be read, or a certificate is not what the agreement says.
        """
        try:
            found = json.loads(path.read_bytes())
            named, authority, leaves = (found[n] for n in ("agreement", "authority", "leaves"))
            invite = cls(
                Agreement.of(named, path),
                authority.encode(),
                {name: leaf.encode() for name, leaf in leaves.items()},
                tuple(Agreement.of(edition, path) for edition in found.get("earlier", ())),
                dict(found.get("signatures", {})),
                dict(found.get("farewells", {})),
            )
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RunError(f"{path} is not an invite, or is damaged: ask for it again") from error
        invite.check()
        return invite

    def check(self) -> None:
        """Raises:
        ScoolError: this program cannot keep the agreement, or a certificate is not the pinned one.
        """
        self.agreement.check()
        known = self.earlier[-1].names if self.earlier else ()
        for member in self.agreement.members:
            leaf = self.leaves.get(member.name)
            if leaf is None or fingerprint(leaf) != member.leaf:
                raise ConfigError(f"the invite lacks the agreed certificate of {member.name}")
            check_leaf(leaf, member.name, self.authority, is_new=member.name not in known)
        check_authorities(self.authority, (self.leaves[name] for name in self.agreement.names))
        check_editions([*self.earlier, self.agreement])
        check_signed(self.agreement, self.leaves, self.signatures)
        check_farewells(self.agreement, self.leaves, self.farewells)


def make_invite(
    proposal: Proposal, requests: Sequence[Wanted], folder: Path, days: int = DAYS
) -> Invite:
    """Sign the certificates of all who asked, and make an agreement of them.

    The key of the authority is not kept: nobody can issue another certificate of this run later.

    Args:
        requests: the members, in the order of their places; later ones dial earlier ones.
        folder: where a network of your own is.
        days: that the certificates are valid.

    Raises:
        ConfigError: says what is not possible.
    """
    require(0 < days <= 366, "days", days, "give 1 to 366")
    names = [wanted.name for wanted in requests]
    if len(set(names)) < len(names):
        raise ConfigError(f"two requests have the same name ({', '.join(names)}): rename one")
    authority_key, authority = new_authority("run", days)
    leaves = {w.name: sign_leaf(w, authority_key, authority, days) for w in requests}
    members = [Member(w.name, w.address, fingerprint(leaves[w.name])) for w in requests]
    agreement = agree(
        proposal.terms, members, proposal.kind, proposal.options, proposal.model, folder
    )
    return Invite(agreement, authority, leaves)
