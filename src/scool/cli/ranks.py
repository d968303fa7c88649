"""Several processes for one command: started here (`--ranks 2`), or by torchrun.

One rank leads: it reads what a person typed, and tells the others which run comes next. So every
command works the same with one rank and with many: the followers wait, take part in each run, keep
no records and say nothing.
"""

import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore

from scool.engine.machine import lead
from scool.engine.ranks.group import join_group, leave_group
from scool.engine.ranks.placement import check_ranks
from scool.errors import ConfigError, QuarantineError, RankLost, RunError, ScoolError, require
from scool.isolation import python_command
from scool.run.config import RunConfig, execute
from scool.run.loop import Interrupted
from scool.run.plugins import load_installed, load_plugin, loaded_plugins

LOOPBACK = "127.0.0.1"
START = 120  # seconds that the ranks may take to find each other
PAUSE = 0.02  # seconds between two looks; waiting in the store would print warnings
END = 5.0  # seconds that followers may take to end by themselves after a good run


def time_out() -> datetime.timedelta:
    """How many seconds a rank waits before it considers another dead: SCOOL_RANK_TIMEOUT."""
    text = os.environ.get("SCOOL_RANK_TIMEOUT", "300")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    require(seconds > 0, "SCOOL_RANK_TIMEOUT", text, "give seconds, e.g. 300")
    return datetime.timedelta(seconds=seconds)


def goes_on(out: Path | None) -> bool:
    """Whether torchrun has restarted this run after a rank was lost.

    Raises:
        ConfigError: torchrun may restart us, and the records could not be found.
    """
    may_restart = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    if may_restart and out is None:
        raise ConfigError(
            "out = None is not possible with --max-restarts of torchrun: give --out, so that a "
            "restart finds what was done"
        )
    is_again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    return is_again and out is not None and (out / "run.json").is_file()


@contextmanager
def leading(ranks: int, clients: int) -> Iterator[None]:
    """Lead so many local ranks, or those of torchrun, for the runs inside, which have so many
    clients. In a process of torchrun that is not the first, this takes part in them and ends."""
    require(ranks >= 1, "ranks", ranks, "give 1 or more")
    size = int(os.environ.get("WORLD_SIZE", "1"))
    is_torchrun = size > 1 or "TORCHELASTIC_RUN_ID" in os.environ
    if is_torchrun and ranks > 1:
        raise ConfigError(
            f"ranks = {ranks} is not possible under torchrun, which has started {size} ranks: "
            "leave --ranks out"
        )
    if is_torchrun:  # also with a single rank: a way to try the machine's NCCL
        store = _meet(size)
        if int(os.environ["RANK"]) > 0:
            sys.exit(_follow(store))
        with _led(store, size):
            yield
    elif ranks > 1:
        check_ranks(ranks, clients)
        with _local(ranks):
            yield
    else:
        yield


def follow(plugins: Mapping[str, str]) -> None:
    """One of the local ranks that `_local` starts, with the plugins of the first rank."""
    for path, digest in plugins.items():
        load_plugin(path)
        require(loaded_plugins()[path] == digest, "plugin", path, "it has changed a moment ago")
    load_installed()
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    wait = datetime.timedelta(seconds=START)
    with _ending_with_the_first_rank(rank):
        store = TCPStore(LOOPBACK, int(os.environ["MASTER_PORT"]), size, False, wait)
        store.set(f"ready/{rank}", "yes")
        _join(store, rank, size)
    sys.exit(_follow(store))


@contextmanager
def _ending_with_the_first_rank(rank: int) -> Iterator[None]:
    """End this process if the first rank dies inside: a store would look for it for minutes. The
    standard input is a pipe from there that nobody writes to; it ends with that process."""
    has_joined = threading.Event()

    def watch() -> None:
        os.read(0, 1)
        if not has_joined.is_set():
            print(f"scool: rank {rank}: the first rank is gone", file=sys.stderr, flush=True)
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    yield
    has_joined.set()


# ---------------------------------------------------------------------- how ranks find each other


def _meet(size: int) -> Store:
    """A store of this run alone, kept by the first rank.

    torchrun offers one that outlives restarts; what dead ranks left in it keeps new ones from
    finding each other (pytorch#135712). So that one only tells where ours is.
    """
    rank, host = int(os.environ["RANK"]), os.environ["MASTER_ADDR"]
    is_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    wait = datetime.timedelta(seconds=START)
    try:
        found = TCPStore(
            host, int(os.environ["MASTER_PORT"]), size, rank == 0 and not is_agents, wait
        )
        key = f"scool/port/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        if rank == 0:
            store = TCPStore(host, 0, size, True, wait, wait_for_workers=False)
            found.set(key, str(store.port))
        else:
            store = TCPStore(host, int(found.get(key)), size, False, wait)
        _join(store, rank, size)
    except RuntimeError as error:
        raise RankLost(
            f"rank {rank} of {size} cannot reach the others ({str(error).splitlines()[0]}): "
            "are all machines up, and is the rendezvous address right?"
        ) from error
    return store


def _join(store: Store, rank: int, size: int) -> None:
    join_group(PrefixStore("group", store), rank, size, time_out())


@contextmanager
def _led(store: Store, size: int) -> Iterator[None]:
    jobs, patience = Jobs(store), 1.0  # after an error others may be gone
    lead(jobs.announce)
    try:
        yield
        patience = END
    finally:
        lead(None)
        jobs.announce(None)
        jobs.wait_for(size - 1, patience)
    leave_group()


def _follow(store: Store) -> int:
    """Take part in the runs that the first rank announces; the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the first rank decides when all stop
        signal.signal(number, signal.SIG_IGN)
    rank, jobs = os.environ["RANK"], Jobs(store)
    try:
        for job in jobs:
            out = None if job["out"] is None else Path(job["out"])
            try:
                execute(RunConfig.from_dict(job["config"]), out=out, resume=job["resume"])
            except (QuarantineError, Interrupted):
                continue  # all ranks alike; the first one knows what comes next
    except RankLost as error:
        print(f"scool: {error}", file=sys.stderr)
        return 1
    except ScoolError as error:
        if not jobs.is_over():  # else the first rank has said it
            print(f"scool: rank {rank}: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"scool: rank {rank}: the first rank is gone ({error})", file=sys.stderr)
        return 1
    leave_group()
    return 0


# ---------------------------------------------------------------------- which run comes next


class Jobs:
    """A numbered list of runs in the store that all ranks see."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._count = 0

    def announce(self, job: dict[str, Any] | None) -> None:
        """The next run; None: there are no more."""
        self.store.set(f"job/{self._count}", json.dumps(job))
        self._count += 1

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The runs, as they are announced. Waits as long as the first rank lives."""
        while True:
            key = f"job/{self._count}"
            while not self.store.check([key]):  # raises where the first rank is gone
                time.sleep(PAUSE)
            self._count += 1
            job = json.loads(self.store.get(key))
            if job is None:
                self.store.add("heard", 1)
                return
            yield job

    def wait_for(self, followers: int, seconds: float) -> None:
        """After the last run: until all followers have heard that there are no more. The store
        ends with the first rank, and who still looks into it would take that for a failure."""
        until = time.monotonic() + seconds
        while self.store.add("heard", 0) < followers and time.monotonic() < until:
            time.sleep(PAUSE)

    def is_over(self) -> bool:
        """Whether the first rank has ended the list, or ends it within a second."""
        key, until = f"job/{self._count}", time.monotonic() + 1
        try:
            while not self.store.check([key]) and time.monotonic() < until:
                time.sleep(PAUSE)
            return self.store.check([key]) and json.loads(self.store.get(key)) is None
        except RuntimeError:
            return False


# ---------------------------------------------------------------------- on this machine


@contextmanager
def _local(size: int) -> Iterator[None]:
    """This process as the first rank, and the others as its children, on the loopback address."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback_interface())
    listener = socket.create_server((LOOPBACK, 0))  # the store would listen on all addresses
    port, wait = listener.getsockname()[1], datetime.timedelta(seconds=START)
    store = TCPStore(
        LOOPBACK, port, size, True, wait, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    threads = max(1, torch.get_num_threads() // size)
    mine = {"WORLD_SIZE": str(size), "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}
    mine |= {"OMP_NUM_THREADS": str(threads)}
    followers = [
        subprocess.Popen(
            python_command(f"from scool.cli.ranks import follow; follow({loaded_plugins()})"),
            env=os.environ | mine | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.PIPE,  # see `_ending_with_the_first_rank`
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the first rank
        )
        for rank in range(1, size)
    ]
    before, patience = torch.get_num_threads(), 1.0
    torch.set_num_threads(threads)
    try:
        _await(store, followers)
        _join(store, 0, size)
        with _led(store, size):
            yield
        patience = END
    finally:
        torch.set_num_threads(before)
        _end(followers, patience)


def _await(store: Store, followers: Sequence[subprocess.Popen]) -> None:
    """Wait until all followers are there; notice at once if one cannot start."""
    until = time.monotonic() + START
    while not store.check([f"ready/{rank}" for rank in range(1, len(followers) + 1)]):
        if any(child.poll() is not None for child in followers) or time.monotonic() > until:
            raise RunError("a rank did not start: its message says why")
        time.sleep(PAUSE)


def _end(followers: Sequence[subprocess.Popen], patience: float) -> None:
    """Wait up to this many seconds, then end the processes that are left; one may hang."""
    until = time.monotonic() + patience
    for follower in followers:
        try:
            follower.wait(max(0.01, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            follower.kill()
            follower.wait()
        if follower.stdin is not None:
            follower.stdin.close()


def _loopback_interface() -> str:
    """lo on Linux, lo0 on macOS."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name in ("lo", "lo0")), names[0])
