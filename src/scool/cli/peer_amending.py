"""`scool peer amend`, and `join` with what it makes: another member for a run that goes on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from scool.errors import ConfigError, printable


@dataclass(frozen=True)
class AmendCommand:
    """Propose newcomers for a run that goes on, and sign; or withdraw.

    The file holds no secret. Every member and newcomer signs it with `scool peer join DIR FILE`;
    when all have, it is in force wherever it is joined once more.
    """

    folder: tyro.conf.Positional[Path]
    """Of the member who proposes."""
    requests: tyro.conf.Positional[tuple[Path, ...]] = ()
    """What the newcomers sent, of `scool peer init`."""
    out: Path = Path("run.amendment")
    """The file for all members and newcomers."""
    days: int = 30
    """How long the newcomers' certificates are valid."""
    withdraw: bool = False
    """Let go of the edition that this member has signed and that is not in force yet: a newcomer
    vanished, or a member refuses. All who have signed it do so; one of them proposes anew."""


def amend(arguments: Sequence[str]) -> int:
    from scool.peer.amending import propose
    from scool.peer.identity import read_request
    from scool.peer.owner import open_owner, read_bytes

    command = tyro.cli(AmendCommand, args=list(arguments), prog="scool peer amend")
    if command.withdraw:
        return _withdraw(command)
    if not command.requests:
        raise ConfigError("there is nobody to let in: give the newcomers' requests, or --withdraw")
    if command.out.exists():
        raise ConfigError(f"{command.out} is there already: give another --out")
    if not command.out.parent.is_dir():  # found out before anything is signed
        raise ConfigError(
            f"there is no folder {command.out.parent}: make it, or give another --out"
        )
    requests = [read_request(read_bytes(path), path) for path in command.requests]
    made = propose(open_owner(command.folder), requests, command.days)
    made.write(command.out)
    print(f"{command.out}: edition {made.agreement.edition} of run {made.agreement.run}, with")
    for wanted in requests:
        print(f"  {wanted.name}  {wanted.address}  key {wanted.key}")
    print(f"{', '.join(made.lacking)} sign it with `scool peer join DIR {command.out}`, one after")
    print("another, with the file of the one before; then all join once more with the last file")
    return 0


def _withdraw(command: AmendCommand) -> int:
    from scool.peer.editions import withdraw
    from scool.peer.owner import open_owner

    number = withdraw(command.folder, open_owner(command.folder).agreement)
    print(
        f"edition {number} is withdrawn. All others who have signed it withdraw it, too; then one"
    )
    print("of you proposes anew, with a higher number. Whoever has it in force already cannot sign")
    print("that one: ask all before you do")
    return 0


def join_amendment(
    folder: Path, path: Path, dry_run: bool, asks: Callable[[str], bool] | None
) -> int:
    """`scool peer join` with an amendment. `asks` is None with `--yes`."""
    from scool.peer.amending import consider_amendment, is_member
    from scool.peer.join import consider, describe

    amendment = consider_amendment(folder, path)
    if amendment.is_in_force:
        print(f"edition {amendment.invite.agreement.edition} is in force in {folder} already")
        return 0
    newcomer = None if is_member(folder) else consider(folder, path)
    for line in [*amendment.terms(), *(newcomer.terms() if newcomer else ())]:
        print(printable(line))
    alone = []
    if newcomer is not None:
        alone = newcomer.alone(1 if dry_run else amendment.invite.agreement.rounds)
        describe(newcomer.own, alone, print)
    if dry_run:
        print("everything fits; nothing was changed")
        return 0
    question = f"Sign edition {amendment.invite.agreement.edition}?"
    if not amendment.is_signed and asks is not None and not asks(question):
        print("not signed; nothing was changed")
        return 1
    amendment = amendment.sign()  # or keep what others have signed since
    amendment.invite.write(path)
    if missing := amendment.invite.lacking:
        print(f"signed, in {path}. Not in force: {', '.join(missing)} must sign yet. Send the file")
        print("on, and join once more with the file that has all signatures")
        return 0
    if newcomer is not None:
        newcomer._replace(invite=amendment.invite).join(alone)
        print(f"in force here. `scool peer run {folder}` takes part")
    else:
        amendment.adopt()
        print("in force here: a peer that runs takes it up after its round. Send the file to all")
    return 0
