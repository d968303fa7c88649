"""Whether members find each other again after a partition, every time, and how long it takes.

    unshare --net python benchmarks/heal_partitions.py --members 8 --times 20

Each member is a process in a network namespace of its own, and all hang on a bridge. For a
partition some of them are moved to another bridge: what they send is dropped, and nobody is told.
Needs root and the program `ip`. No learning: this is about links alone, over TLS as in a run.
"""

import argparse
import ctypes
import mmap
import os
import signal
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import NoReturn

from scool.peer import identity
from scool.peer.identity import Files
from scool.peer.zenoh import LEASE, ZenohTransport

NEW_NETWORK = 0x40000000  # CLONE_NEWNET
MASK = struct.Struct("I")  # whom a member sees, a bit each


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)


def issue(folder: Path, name: str, address: str, authority: tuple) -> Files:
    """What a member is known by."""
    folder.mkdir()
    files, key = Files.of(folder), identity.new_key()
    identity.write_key(files.key, key)
    wanted = identity.read_request(identity.pem(identity.request(name, address, key)))
    files.leaf.write_bytes(identity.sign_leaf(wanted, *authority))
    files.authority.write_bytes(authority[1])
    return files


def live(place: int, addresses: Sequence[str], files: Files, seen: mmap.mmap) -> NoReturn:
    """A member: it waits for its end of a cable, opens the network, and tells whom it sees."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "unshare")
    MASK.pack_into(seen, 4 * place, 1)  # the cable may come
    while subprocess.run(["ip", "link", "show", f"p{place}"], capture_output=True).returncode:
        time.sleep(0.05)
    for words in ("link set lo up", f"addr add 10.9.0.{place + 1}/24 dev p{place}"):
        ip(words)
    ip(f"link set p{place} up")
    names = [f"member-{i}" for i in range(len(addresses))]
    member = ZenohTransport("heal", place, names, addresses, files, 1 << 20)
    while True:
        MASK.pack_into(seen, 4 * place, sum(1 << other for other in member.members()))
        time.sleep(0.02)


def bits(places: Iterable[int]) -> int:
    return sum(1 << place for place in places)


def wait_for(condition: Callable[[], bool], seconds: float) -> float | None:
    """The seconds until it came true; None if it did not."""
    began = time.monotonic()
    while (spent := time.monotonic() - began) < seconds:
        if condition():
            return spent
        time.sleep(0.02)
    return None


def start(count: int, folder: Path, seen: mmap.mmap) -> list[int]:
    """The processes, on a bridge."""
    addresses = [f"10.9.0.{place + 1}:7447" for place in range(count)]
    authority = identity.new_authority("heal")
    processes: list[int] = []
    for bridge in ("whole", "other"):
        ip(f"link add {bridge} type bridge")
        ip(f"link set {bridge} up")
    for place, address in enumerate(addresses):
        files = issue(folder / str(place), f"member-{place}", address, authority)
        if (process := os.fork()) == 0:
            live(place, addresses, files, seen)
        processes.append(process)
        while not MASK.unpack_from(seen, 4 * place)[0]:
            time.sleep(0.01)
        ip(f"link add h{place} type veth peer name p{place}")
        ip(f"link set p{place} netns {process}")
        ip(f"link set h{place} master whole up")
    return processes


def measure(chosen: argparse.Namespace, seen: mmap.mmap) -> list[float]:
    """The seconds from the end of each partition until all see all; those that healed."""
    everybody, rng, healed = range(chosen.members), Random(0), list[float]()

    def views() -> list[int]:
        return [MASK.unpack_from(seen, 4 * place)[0] for place in everybody]

    def is_whole() -> bool:
        return set(views()) == {bits(everybody)}

    print(f"whole at first after {wait_for(is_whole, chosen.patience)} s", flush=True)
    for number in range(chosen.times):
        side = set(rng.sample(everybody, rng.randrange(1, chosen.members // 2 + 1)))
        for place in side:
            ip(f"link set h{place} master other")
        time.sleep(chosen.seconds)  # and longer, until all have noticed
        others = set(everybody) - side
        split = [bits(side if p in side else others) for p in everybody]
        is_split = wait_for(partial(lambda of: views() == of, split), chosen.patience) is not None
        for place in side:
            ip(f"link set h{place} master whole")
        spent = wait_for(is_whole, chosen.patience)
        words = f"NEVER whole: {[bin(v) for v in views()]}"
        words = words if spent is None else f"whole after {spent:.1f} s"
        print(f"{number + 1:3d} {sorted(side)} split: {is_split}; {words}", flush=True)
        healed += [] if spent is None or not is_split else [spent]
    return healed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3 * LEASE, help="of each partition")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to heal at most")
    chosen = parser.parse_args()
    seen = mmap.mmap(-1, 4 * chosen.members)
    with tempfile.TemporaryDirectory() as folder:
        processes = start(chosen.members, Path(folder), seen)
        try:
            healed = measure(chosen, seen)
        finally:
            for process in processes:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
    middle, longest = statistics.median(healed), max(healed)
    words = f"median {middle:.1f} s, longest {longest:.1f} s"
    print(f"{len(healed)} of {chosen.times} healed; {words}")


if __name__ == "__main__":
    main()
