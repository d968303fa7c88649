"""Owners in processes of their own on this machine, and faults that happen to them."""

import multiprocessing
import os
import shutil
import signal
import socket
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stderr, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, final

from scool.data.catalogue import DataConfig, load
from scool.data.federation import Federation
from scool.errors import ScoolError
from scool.peer.faults import Fault
from scool.peer.links import Links
from scool.peer.newcomers import check_newcomers, let_in, make_newcomer
from scool.peer.node import connect, run_owner
from scool.peer.owner import open_owner
from scool.peer.pilot import Trial, make_pilot
from scool.peer.status import read_status
from scool.types import Info

POLL = 0.05  # seconds between looks at how far the peers are
MEASURE = 1.0  # seconds between looks at the memory


class Plan(NamedTuple):
    """What is simulated."""

    peers: int
    trial: Trial
    faults: Sequence[Fault] = ()
    late: Mapping[int, int] = {}  # peer -> the round of the others in which it starts
    newcomers: Mapping[int, int] = {}  # the same, of who is let in then; these have the last places
    reserved: bool = True  # whether places wait for them; else the run grows
    loss: float = 0.0  # share of pieces of data that come later, because a packet was lost
    pace: float = 0.0  # seconds that a round takes at least, as longer training would
    limit: float = 600.0  # seconds after which the rest is ended
    model: Mapping[str, Any] = {}  # options of the network


class Watched(NamedTuple):
    """What was seen while the peers ran."""

    folders: list[Path]
    seconds: float  # from the first round to the last
    received: int  # bytes of records and models, over all peers
    memory: dict[int, tuple[int, int]]  # bytes that each peer held early, and at the end
    failures: list[str]


def free_addresses(count: int) -> list[str]:
    """Ports of this machine that nobody uses now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    return addresses


def simulate(
    folder: Path,
    plan: Plan,
    options: Mapping[str, Any] | None = None,
    federation: Federation | None = None,
    tell: Callable[[str], None] = lambda words: None,
) -> Watched:
    """Make a pilot below `folder` and run it, with the faults of the plan.

    Raises:
        ScoolError: the plan is not possible.
    """
    addresses = free_addresses(plan.peers)
    names = [f"peer-{place}" for place in range(plan.peers)]
    check_newcomers(plan.newcomers, plan.peers)
    first = plan.peers - len(plan.newcomers)
    pilot = dict(zip(names[:first], addresses, strict=False))
    has_places = plan.newcomers and plan.reserved
    trial = replace(plan.trial, places=plan.peers) if has_places else plan.trial
    data = federation or load(DataConfig(clients=plan.peers, groups=2), trial.seed)
    folders = make_pilot(folder, pilot, trial, options, data, plan.model)
    for place in range(first, plan.peers):
        folders.append(folder / names[place])
        make_newcomer(folders[place], addresses[place], data, place)
    with ExitStack() as held:
        links = None
        if plan.loss or any(fault.kind == "cut" for fault in plan.faults):
            links = held.enter_context(Links(addresses, plan.loss, plan.trial.seed))
        peers = _Processes(folders, links, plan.pace)
        held.callback(peers.end)
        return _watch(peers, links, plan, tell)


@final
class _Processes:
    """The peers as processes. Each is ended by its own id, and none is left."""

    def __init__(self, folders: list[Path], links: Links | None, pace: float) -> None:
        self.folders, self._links, self._pace = folders, links, pace
        self._running: dict[int, Any] = {}
        self._stopped: set[int] = set()
        self._before: dict[int, int] = {}  # bytes that a peer received before it was killed
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["scool.peer.warm"])

    def start(self, place: int) -> None:
        dial = self._links.routes[place] if self._links else None
        arguments = (str(self.folders[place]), str(self.errors(place)), dial, self._pace)
        process = self._context.Process(target=take_part, args=arguments, daemon=True)
        process.start()
        self._running[place] = process

    def errors(self, place: int) -> Path:
        return self.folders[place].with_suffix(".err")

    def kill(self, place: int) -> None:
        self._before[place] = self.received(place)
        self._running[place].kill()
        self._running[place].join()
        with suppress(OSError):
            (self.folders[place] / "status.json").unlink()

    def signal(self, place: int, number: signal.Signals) -> None:
        if self._running[place].is_alive():
            os.kill(self._running[place].pid, number)

    def is_alive(self, place: int) -> bool:
        return place in self._running and self._running[place].is_alive()

    def exit_code(self, place: int) -> int | None:
        return self._running[place].exitcode if place in self._running else None

    def status(self, place: int) -> dict[str, Any]:
        try:
            return read_status(self.folders[place])
        except (ScoolError, OSError):
            return {}

    def received(self, place: int) -> int:
        return self._before.get(place, 0) + int(self.status(place).get("bytes_received", 0))

    def memory(self, place: int) -> int:
        """Bytes that belong to this process alone; 0 where the system does not tell."""
        with suppress(OSError, ValueError):
            rollup = Path(f"/proc/{self._running[place].pid}/smaps_rollup").read_text()
            [line] = [line for line in rollup.splitlines() if line.startswith("Private_Dirty:")]
            return 1024 * int(line.split()[1])
        return 0

    def end(self) -> None:
        for process in self._running.values():
            if process.is_alive():
                process.kill()
            process.join()


def _watch(
    peers: _Processes, links: Links | None, plan: Plan, tell: Callable[[str], None]
) -> Watched:
    everyone, rounds = range(plan.peers), plan.trial.rounds
    for place in everyone:
        if place not in plan.late and place not in plan.newcomers:
            peers.start(place)
    began = time.monotonic()
    first: float | None = None
    late, newcomers = dict(plan.late), dict(plan.newcomers)
    faults, due = list(plan.faults), list[tuple[float, Callable[[], None]]]()
    memory: dict[int, tuple[int, int]] = {}
    measured = began
    latest: dict[int, int] = {}
    failures: list[str] = []
    while True:
        now = time.monotonic()
        for place in everyone:
            if status := peers.status(place):
                latest[place] = status["round"]
        is_time = now >= measured + MEASURE
        measured = now if is_time else measured
        for place in [place for place, round in latest.items() if round >= rounds // 4]:
            if (is_time or place not in memory) and (size := peers.memory(place)):
                memory[place] = (memory.get(place, (size,))[0], size)
        done = sorted((latest.get(place, 0) for place in everyone), reverse=True)[plan.peers // 2]
        first = now if first is None and done else first
        for when, act in [item for item in due if item[0] <= now]:
            due.remove((when, act))
            act()
        while faults and faults[0].round <= done:
            fault = faults.pop(0)
            tell(f"round {done}: {describe(fault)}")
            due.append((now + fault.seconds, _begin(fault, peers, links)))
        for place in [place for place, at in late.items() if at <= done]:
            del late[place]
            tell(f"round {done}: peer {place} starts")
            peers.start(place)
        for place in [place for place, at in newcomers.items() if at <= done]:
            del newcomers[place]
            tell(f"round {done}: peer {place} is let in, and starts")
            let_in(peers.folders[:place], peers.folders[place])
            peers.start(place)
        is_over = not (due or late or newcomers) and not any(
            peers.is_alive(place) for place in everyone
        )
        if is_over or now - began > plan.limit:
            break
        time.sleep(POLL)
    for place in everyone:
        if peers.is_alive(place):
            failures.append(f"peer {place} did not end within {plan.limit:g} s")
        elif code := peers.exit_code(place):
            said = peers.errors(place).read_text().strip().splitlines()[-1:]
            failures.append(f"peer {place} ended with {code}: {' '.join(said)}")
    return Watched(
        peers.folders,
        time.monotonic() - (first or began),
        sum(peers.received(place) for place in everyone),
        memory,
        failures,
    )


def describe(fault: Fault) -> str:
    """In words."""
    who = ", ".join(map(str, fault.peers))
    words = {
        "kill": f"peer {who} is killed, and starts again after {fault.seconds:g} s",
        "replace": f"peer {who} is lost with its folder, and starts after {fault.seconds:g} s",
        "stop": f"peer {who} sleeps for {fault.seconds:g} s",
        "cut": f"peers {who} are cut off from {', '.join(map(str, fault.others))} "
        f"for {fault.seconds:g} s",
    }
    return words[fault.kind]


def _begin(fault: Fault, peers: _Processes, links: Links | None) -> Callable[[], None]:
    """Let it happen; returns what ends it."""
    if fault.kind == "cut":
        assert links is not None
        links.cut(fault.peers, fault.others)
        return lambda: links.heal(fault.peers, fault.others)
    [place] = fault.peers
    if not peers.is_alive(place):
        return lambda: None  # it is away already
    if fault.kind == "stop":
        peers.signal(place, signal.SIGSTOP)
        return lambda: peers.signal(place, signal.SIGCONT)
    peers.kill(place)
    if fault.kind == "replace":
        shutil.rmtree(peers.folders[place] / "run", ignore_errors=True)
    return lambda: peers.start(place)


@final
class Pace:
    """A recorder that makes rounds last."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._next = seconds, 0.0

    def start(self, header: Mapping[str, Any], first_round: int) -> None:
        self._next = time.monotonic() + self._seconds

    def round(self, row: Mapping[str, Any], info: Info) -> None:
        if row["train_loss"] is not None:  # else the round went by without this peer
            time.sleep(max(0.0, self._next - time.monotonic()))
        self._next = time.monotonic() + self._seconds

    def end(self, result: Any) -> None:
        """Nothing more to wait for."""


def take_part(folder: str, errors: str, dial: list[str] | None, pace: float = 0.0) -> None:
    """The whole life of a peer. What goes wrong is said in a file."""
    with open(errors, "a") as file, redirect_stderr(file):
        code = 0
        try:
            owner = open_owner(Path(folder))
            run_owner(owner, [Pace(pace)] if pace else [], connect=partial(connect, dial=dial))
        except ScoolError as error:
            print(error, file=file)
            code = 1
        except BaseException:
            traceback.print_exc(file=file)
            code = 2
        file.flush()
        os._exit(code)
