"""Whether the network has given a member up that could be reached."""

import threading
from collections.abc import Callable, Set
from typing import final

LEASE = 3.0  # seconds without a word after which a link counts as broken
PATIENCE = 2 * LEASE  # seconds that a member is dark before it is dialled apart from the network


@final
class Watchdog:
    """Looks after the members that this peer dials.

    Zenoh dials them for ever. But where both ends had opened their networks again at the same
    moment, a pair was seen to stay without a link. So a member that has been dark for two leases is
    dialled apart from Zenoh, in the background. If it answers as a member of the run should, and is
    still dark one lease later, the session is stuck: the peer opens it again.
    """

    def __init__(self, look: Callable[[int], str]) -> None:
        """`look` dials a member; empty if it can be reached."""
        self._look = look
        self._since: dict[int, float] = {}  # when a member was found dark, or last dialled
        self._reachable: dict[int, float] = {}  # when it was found that it could be reached
        self._found: dict[int, bool] = {}  # what the thread has found out; it writes nothing else
        self._thread = threading.Thread()

    def is_stuck(self, dark: Set[int], now: float) -> bool:
        """Called now and then with the members without a link."""
        if self._found and not self._thread.is_alive():
            self._since |= dict.fromkeys(self._found, now)  # look again after a while
            self._reachable |= {peer: now for peer, answers in self._found.items() if answers}
            self._found = {}
        self._since = {peer: self._since.get(peer, now) for peer in dark}
        self._reachable = {p: t for p, t in self._reachable.items() if p in dark}
        if any(now >= found + LEASE for found in self._reachable.values()):
            self._since, self._reachable = dict.fromkeys(dark, now), {}
            return True
        late = [peer for peer, since in self._since.items() if now >= since + PATIENCE]
        unknown = [peer for peer in late if peer not in self._reachable]
        if unknown and not self._thread.is_alive():
            self._thread = threading.Thread(target=self._dial, args=(unknown,), daemon=True)
            self._thread.start()
        return False

    def _dial(self, peers: list[int]) -> None:
        for peer in peers:
            self._found[peer] = not self._look(peer)
