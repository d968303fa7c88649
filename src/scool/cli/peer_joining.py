"""`scool peer init | invite | join`: how owners that do not share a machine come to a run."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from scool.errors import ConfigError, printable


@dataclass(frozen=True)
class InitCommand:
    """Make a folder with a private key, peer.toml, and a certificate request for the founder."""

    name: tyro.conf.Positional[str]
    """Of this owner: a-z, 0-9 and -."""
    listen: str
    """HOST:PORT at which the other owners reach this one."""
    data: str = "data.npz"
    """A file (.csv, .tsv, .parquet, .npz) that is here, or will be in the folder; or
    module:function."""
    folder: Path | None = None
    """The new folder; default: the name."""


@dataclass(frozen=True)
class InviteCommand:
    """Sign the certificates of all who sent a request, and propose the agreement of run.toml.

    The invite holds no secret: send it to all members.
    """

    terms: tyro.conf.Positional[Path]
    """run.toml; docs/peers.md shows one."""
    requests: tyro.conf.Positional[tuple[Path, ...]]
    """What owners sent; later ones dial earlier ones."""
    out: Path = Path("run.invite")
    """The file for the members."""
    days: int = 30
    """How long the certificates are valid."""


@dataclass(frozen=True)
class JoinCommand:
    """Show what an invite asks for and what will leave this machine, try the data, and sign."""

    folder: tyro.conf.Positional[Path]
    """The owner's folder."""
    invite: tyro.conf.Positional[Path]
    """What the founder sent."""
    dry_run: bool = False
    """Only look: load the data, check shapes, train one round alone; change nothing."""
    yes: bool = False
    """Do not ask."""


def init(arguments: Sequence[str]) -> int:
    from scool.peer.invite import make_owner

    command = tyro.cli(InitCommand, args=list(arguments), prog="scool peer init")
    folder = command.folder or Path(command.name)
    here = Path(command.data)
    data = str(here.resolve()) if here.is_file() else command.data
    wanted = make_owner(folder, command.name, command.listen, data)
    print(f"{folder}: private key, peer.toml and {command.name}.request")
    print(f"data: {data}, as {folder}/peer.toml says")
    print(f"key: {wanted.key}")
    print(f"Send {folder}/{command.name}.request to the founder. Compare the key by telephone:")
    print("nobody can replace it on the way then.")
    return 0


def invite(arguments: Sequence[str]) -> int:
    from scool.peer.identity import read_request
    from scool.peer.invite import make_invite
    from scool.peer.owner import read_bytes
    from scool.peer.terms import Proposal

    command = tyro.cli(InviteCommand, args=list(arguments), prog="scool peer invite")
    if command.out.exists():
        raise ConfigError(f"{command.out} is there already: give another --out")
    requests = [read_request(read_bytes(path), path) for path in command.requests]
    proposal = Proposal.read(command.terms)
    made = make_invite(proposal, requests, command.terms.parent, command.days)
    made.write(command.out)
    print(f"{command.out}: the agreement of run {made.agreement.run}, for")
    for wanted in requests:
        print(f"  {wanted.name}  {wanted.address}  key {wanted.key}")
    print(
        "Send it to all of them. Each runs `scool peer join DIR INVITE`, then `scool peer run DIR`"
    )
    return 0


def join(arguments: Sequence[str]) -> int:
    from scool.peer.join import consider, describe

    command = tyro.cli(JoinCommand, args=list(arguments), prog="scool peer join")
    candidate = consider(command.folder, command.invite)
    for line in candidate.terms():
        print(printable(line))
    rounds = 1 if command.dry_run else candidate.invite.agreement.rounds
    alone = candidate.alone(rounds)
    describe(candidate.own, alone, print)
    if command.dry_run:
        print("everything fits; nothing was changed")
        return 0
    if not command.yes and not agrees("Sign the agreement?"):
        print("not joined; nothing was changed")
        return 1
    candidate.join(alone)
    print(f"signed. `scool peer run {command.folder}` takes part")
    return 0


def agrees(question: str) -> bool:
    """Ask the person at the terminal.

    Raises:
        ConfigError: nobody is there.
    """
    if not sys.stdin.isatty():
        raise ConfigError("nobody is there to ask: read what is above, then give --yes")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
