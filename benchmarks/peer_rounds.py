"""What a round costs between peers on this machine, and in one process that has all of them.

Each peer is a process, over TLS on loopback. Told are medians over rounds and peers: seconds from
round to round, CPU milliseconds of a peer (all its threads, and its main thread alone), and how
many times the simulator's that is. Simulator and peers run by turns, `--repeat` times.

    python benchmarks/peer_rounds.py --peers 8 --rounds 60
    python benchmarks/peer_rounds.py --peers 2 --rounds 200 --profile
"""

import argparse
import cProfile
import json
import multiprocessing
import pstats
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from scool.data.catalogue import DataConfig, load
from scool.data.federation import Federation
from scool.peer.agreement import Agreement
from scool.peer.node import connect, run_owner
from scool.peer.owner import open_owner
from scool.peer.pilot import Trial, make_pilot
from scool.peer.simulate import free_addresses
from scool.run.loop import fit


class Clocks:
    """A recorder of the clocks at the end of every round."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, float, float]] = []

    def start(self, header: Mapping[str, Any], first_round: int) -> None:
        self.look()

    def round(self, row: Mapping[str, Any], info: Mapping[str, Any]) -> None:
        self.look()

    def end(self, result: Any) -> None:
        """Nothing more to look at."""

    def look(self) -> None:
        self.rows.append((time.perf_counter(), time.process_time(), time.thread_time()))

    def medians(self) -> list[float]:
        """Per clock, seconds of a round; the first ones load and warm up."""
        rows = self.rows[min(5, len(self.rows) // 3) :]
        steps = [[b - a for a, b in zip(x, y, strict=True)] for x, y in pairwise(rows)]
        return [median(column) for column in zip(*steps, strict=True)]


def take_part(folder: str, is_profiled: bool) -> None:
    """The life of a peer."""
    clocks, profile = Clocks(), cProfile.Profile(time.thread_time)
    owner = open_owner(Path(folder))
    work = partial(run_owner, owner, [clocks], connect=connect)
    profile.runcall(work) if is_profiled else work()
    (Path(folder) / "clocks.json").write_text(json.dumps(clocks.medians()))
    if is_profiled:
        profile.dump_stats(Path(folder) / "profile")


def run_peers(base: Path, data: Federation, given: argparse.Namespace) -> list[Path]:
    """Run all peers to their end; returns their folders."""
    names = [f"peer-{place}" for place in range(given.peers)]
    addresses = dict(zip(names, free_addresses(given.peers), strict=True))
    trial = Trial(method=given.method, rounds=given.rounds, mode=given.mode)
    model = {"hidden": given.hidden} if given.hidden else {}
    folders = make_pilot(base, addresses, trial, json.loads(given.options), data, model)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["scool.peer.warm"])
    processes = [
        context.Process(target=take_part, args=(str(f), given.profile and not place))
        for place, f in enumerate(folders)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return folders


def simulate(folder: Path, data: Federation) -> list[float]:
    """The same run in one process."""
    agreement, clocks = Agreement.read(folder), Clocks()
    fit(
        data,
        agreement.builder(folder),
        agreement.build_method(),
        rounds=agreement.rounds,
        seed=agreement.seed,
        device="cpu",
        recorders=[clocks],
        verbose=False,
    )
    return clocks.medians()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--mode", default="strict")
    parser.add_argument("--method", default="scool-sbm")
    parser.add_argument("--options", default="{}", help="of the method, as JSON")
    parser.add_argument("--hidden", type=int, nargs="*", help="widths of the network's layers")
    parser.add_argument("--profile", action="store_true", help="of the first peer, by function")
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = load(DataConfig(clients=given.peers, groups=2), 0)
    print("peers: round s  CPU ms  main ms | simulator: round s  CPU ms | times")
    for _ in range(given.repeat):
        with tempfile.TemporaryDirectory() as place:
            folders = run_peers(Path(place) / "trial", data, given)
            found = [json.loads((f / "clocks.json").read_text()) for f in folders]
            wall, cpu, main_cpu = (median(column) for column in zip(*found, strict=True))
            one, own, _ = simulate(folders[0], data)
            print(
                f"{wall:14.4f} {1000 * cpu:7.1f} {1000 * main_cpu:8.1f} | {one:18.4f} "
                f"{1000 * own:7.1f} | {wall / one:5.1f}"
            )
            if given.profile:
                stats = pstats.Stats(str(folders[0] / "profile"))
                stats.sort_stats("cumulative").print_stats(120)


if __name__ == "__main__":
    main()
