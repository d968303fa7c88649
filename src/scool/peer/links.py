"""Links between processes on this machine that can be cut, and that lose packets: every connection
goes through a small program that passes bytes on, or does not."""

import asyncio
import threading
from collections.abc import Iterable, Sequence
from random import Random
from typing import final

REPEAT = 0.2  # seconds after which TCP sends a packet again, where the last one of many was lost
CHUNK = 1 << 16


@final
class Links:
    """A way from each member to each earlier one, which it dials. Used in a `with` statement.

    A cut passes nothing on and closes nothing, as a network that drops packets: what was sent
    arrives after it, unless the ends have given up by then.
    """

    def __init__(self, addresses: Sequence[str], loss: float = 0.0, seed: int = 0) -> None:
        """`loss` is the chance of each piece of data to come `REPEAT` later."""
        self._addresses, self._loss, self._rng = addresses, loss, Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._open: dict[frozenset[int], asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._cuts: dict[frozenset[int], int] = {}  # how many cuts are on a link
        self.routes: list[list[str]] = []  # [i][j]: where i dials j < i

    def __enter__(self) -> "Links":
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self, some: Iterable[int], others: Iterable[int]) -> None:
        """From now on nothing passes between these and those."""
        self._loop.call_soon_threadsafe(self._change, tuple(some), tuple(others), 1)

    def heal(self, some: Iterable[int], others: Iterable[int]) -> None:
        self._loop.call_soon_threadsafe(self._change, tuple(some), tuple(others), -1)

    # ------------------------------------------------------------------ in the loop's thread

    def _change(self, some: Sequence[int], others: Sequence[int], by: int) -> None:
        for link in (frozenset((a, b)) for a in some for b in others):
            self._cuts[link] = self._cuts.get(link, 0) + by
            if self._cuts[link] > 0:
                self._open[link].clear()
            else:
                self._open[link].set()

    async def _listen(self) -> None:
        for i in range(len(self._addresses)):
            self.routes.append([await self._route(i, j) for j in range(i)])

    async def _route(self, i: int, j: int) -> str:
        link = frozenset((i, j))
        self._open[link] = asyncio.Event()
        self._open[link].set()

        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            host, _, port = self._addresses[j].rpartition(":")
            await self._open[link].wait()
            try:
                there, back = await asyncio.open_connection(host, int(port))
            except OSError:
                writer.close()
                return
            for pair in ((reader, back), (there, writer)):
                task = asyncio.ensure_future(self._pass(*pair, link))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        server = await asyncio.start_server(connect, "127.0.0.1", 0)
        self._servers.append(server)
        return "127.0.0.1:{1}".format(*server.sockets[0].getsockname())

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: frozenset[int]
    ) -> None:
        try:
            while data := await reader.read(CHUNK):
                if self._rng.random() < self._loss:
                    await asyncio.sleep(REPEAT)
                await self._open[link].wait()
                writer.write(data)
                await writer.drain()
            await self._open[link].wait()
        except OSError:
            pass
        finally:
            writer.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for event in self._open.values():
            event.set()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
