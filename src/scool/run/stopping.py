"""When a person stops a run: at once in one process, together at the end of a round in several."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import torch

from scool.engine.processes import Processes
from scool.graph.edges import Edges, Matrix


@final
class Stop:
    """Whether somebody wants the run to stop, and whether all ranks know."""

    def __init__(self, ranks: Processes) -> None:
        self.ranks = ranks
        self.is_asked = False
        self.is_agreed = ranks.size == 1  # one process agrees with itself at any moment

    def ask(self, number: int, frame: object) -> None:
        """A signal: the first asks for the end of the round, the second does not wait for it."""
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True

    def agree(self, graph: Matrix | float) -> None:
        """At the end of a round: make sure that all ranks hold the same graph.

        Raises:
            RunError: the graphs differ, so that nobody would know what to send to whom.
        """
        if self.ranks.size > 1:
            self.ranks.agree("graph", _checksum(graph))

    def check(self) -> None:
        """At the end of a round: stop together.

        Raises:
            KeyboardInterrupt: on every rank alike.
        """
        if self.ranks.size > 1 and any(self.ranks.share(self.is_asked)):
            self.is_agreed = True
            raise KeyboardInterrupt

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Ctrl-C and a scheduler's stop end a run of several ranks after the round they come in."""
        is_main = threading.current_thread() is threading.main_thread()
        listens = is_main and self.ranks.is_first and self.ranks.size > 1
        numbers = (signal.SIGINT, signal.SIGTERM) if listens else ()
        before = {number: signal.signal(number, self.ask) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _checksum(graph: Matrix | float) -> int:
    """Of the bits of all weights."""
    if isinstance(graph, Edges):
        return int((graph.values.double().view(torch.int64) * (graph.keys + 1)).sum())
    return int(torch.as_tensor(graph).double().contiguous().view(torch.int64).sum())
