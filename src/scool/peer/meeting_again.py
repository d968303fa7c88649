"""A strict run that more than one peer was stopped in: they may have saved different rounds."""

from pathlib import Path

from scool.peer.post import ASK, PeerError, Post, Spot
from scool.recording.disk import writing
from scool.recording.folder import RunFolder
from scool.recording.writer import RunWriter


def meet_again(records: Path, post: Post) -> None:
    """Go back to the round of the member that is least far, where that one is behind this peer.

    What a member lacks of a round, it fetches from the others. A peer that comes back offers
    nothing of the rounds before, so it repeats them, with the same numbers. Nobody can be further
    behind than a round and what its disk had not yet taken.

    Raises:
        PeerError: the checkpoint of that round is not there any more.
    """
    folder = RunFolder.open(records)
    saved = folder.checkpoints()
    mine = saved[0] if saved else 0
    post.say_where(Spot(mine, False))
    least = min((spot.round for spot in _others(post).values()), default=mine) if mine else 0
    if least >= mine:
        return
    if least not in (*saved, *([0] if mine == 1 else [])):
        raise PeerError(
            f"this peer has saved round {mine}, and another one goes on from round {least}, which "
            f"is not kept here any more: bring back an older copy of {records}, or all start again "
            "with a new agreement"
        )
    with writing(records):
        RunWriter.take_up(folder, least).close()
    post.say_where(Spot(least, False))


def _others(post: Post) -> dict[int, Spot]:
    """How far all others are; waits for each."""
    others = set(range(post.places)) - {post.place}
    found: dict[int, Spot] = {}
    began = post.transport.now()
    while True:
        missing = others - found.keys() - post.gone
        now = post.transport.now()
        answered = post.where(missing, now + ASK) if missing else set[int]()
        found |= {peer: post.spots[peer] for peer in answered}
        post.sort()
        if not (missing := sorted(missing - answered)):
            return found
        post.waiting(missing, post.transport.now() - began)
        post.transport.wait(now + ASK)
