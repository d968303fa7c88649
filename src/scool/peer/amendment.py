"""More members for a run that goes on: a new edition of the agreement.

It names the edition before by its hash, and adds members: on reserved places, and beyond them on
new ones, for which the graph grows. It can change nothing else. It is in force when those members
of the edition before have signed that the agreement says, and the newcomers. Whoever has it in
force lets the newcomers in; the others do not hear them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from scool.errors import ConfigError
from scool.peer.agreement import Agreement, Member
from scool.peer.identity import is_signed


def with_members(agreement: Agreement, newcomers: Sequence[Member], edition: int = 0) -> Agreement:
    """The next edition, in which newcomers have the next places. It has the next number, or a
    higher one where an edition with that number was withdrawn.

    Raises:
        ConfigError: the run cannot grow, or a name is taken.
    """
    check_room(agreement, len(newcomers))
    for name in (member.name for member in newcomers):
        if name in agreement.names:
            raise ConfigError(
                f"{name} is the name of a member already (members that left keep theirs): the "
                "newcomer makes a request with another name"
            )
    members = (*agreement.members, *newcomers)
    found = replace(
        agreement,
        members=members,
        places=max(agreement.places, len(members)) if agreement.places else 0,
        edition=edition or agreement.edition + 1,
        before=agreement.sha256,
        founding=agreement.run,
    )
    found.check()
    return found


def check_room(agreement: Agreement, newcomers: int) -> None:
    """Refuse newcomers for whom there is no place, and whose method cannot make any.

    Raises:
        ConfigError: says what is possible.
    """
    if agreement.mode == "strict":
        raise ConfigError(
            "a strict run has the members that it began with: it would have waited for a newcomer "
            "from the first round on. Agree on mode = 'elastic' for a run that grows"
        )
    free = agreement.capacity - len(agreement.members)
    stays = agreement.build_method().stays if newcomers > free else ""
    if stays:
        raise ConfigError(
            f"no place is left for {newcomers - free} of {newcomers}, and the {stays} of method "
            f"{agreement.method!r} is made for {agreement.capacity} members, so the run does not "
            "grow: make a new agreement with more places, which is a new run"
        )


def check_editions(editions: Sequence[Agreement]) -> None:
    """Refuse a row of editions of which one does more than to add members.

    Raises:
        ConfigError: says what is wrong.
    """
    first = editions[0]
    if (first.edition, first.before, first.founding) != (1, "", ""):
        raise ConfigError("the first edition of the agreement is missing: ask for the file again")
    for one, next_ in pairwise(editions):
        newcomers = next_.members[len(one.members) :]
        is_later = next_.edition > one.edition
        if not (newcomers and is_later and next_ == with_members(one, newcomers, next_.edition)):
            raise ConfigError(
                f"edition {next_.edition} does not follow from edition {one.edition} of the "
                "agreement by adding members: it is a forgery, or of another run. Sign nothing"
            )


def check_signed(
    agreement: Agreement, leaves: Mapping[str, bytes], signatures: Mapping[str, str]
) -> None:
    """Refuse signatures that are not those of members under this edition.

    Raises:
        ConfigError: names whose is wrong.
    """
    for name, signature in signatures.items():
        try:
            is_right = name in agreement.names and is_signed(
                leaves[name], agreement.canonical(), bytes.fromhex(signature)
            )
        except (ValueError, TypeError):
            is_right = False
        if not is_right:
            raise ConfigError(
                f"what is given as the signature of {str(name)[:40]!r} under edition "
                f"{agreement.edition} is none: the file was changed. Ask for it again"
            )


def lacking(
    before: Agreement,
    agreement: Agreement,
    signed: Mapping[str, str],
    left: Collection[str] = (),
) -> list[str]:
    """Whose signatures are missing before an edition is in force; empty if it is. Who has left for
    good need not sign. Where most members are enough, most must have signed, whoever left: two such
    groups share a member, and no member signs two editions with one number. All that have not
    signed are listed until then."""
    old = [name for name in before.names if name not in signed and name not in left]
    new = [name for name in agreement.names[len(before.names) :] if name not in signed]
    have = sum(name in signed for name in before.names)
    is_enough = before.signers == "most" and 2 * have > len(before.names)
    return ([] if is_enough else old) + new
