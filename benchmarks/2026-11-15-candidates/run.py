"""Candidates in place of all pairs: is the graph as good, and how does the cost grow?

    python run.py search    # how fast a client finds its group, simulated losses, no training
    python run.py quality   # all pairs against candidates, K = 400 and 2,000
    python run.py scaling   # CPU seconds and bytes of a round for K = 250 to 2,000

One JSON object a line. Clients come in groups of 50; each group has its own linear teacher.
"""

import json
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

import scool
from scool.engine.local import LocalEngine
from scool.graph import candidates
from scool.types import Info

GROUP = 50
Row = dict[str, Any]


def planted(clients: int, seed: int, **options: int) -> scool.Federation:
    return scool.synthetic(clients, clients // GROUP, 20, seed=seed, test_size=200, **options)


def method(prior: Any, tried: int, clients: int) -> scool.SCooL:
    return scool.SCooL(
        prior=prior,
        sgd=scool.LocalSGD(lr=0.2, batch_size=8, epochs=3),
        draw=scool.CrossDraw(cross_samples=20),
        fraction=GROUP / clients,
        candidates=tried,
    )


def search() -> Iterator[Row]:
    """Share of a client's group that it has met after each round, of 64 candidates, K = 2,000.

    Losses as in the E-step tests: 0.4 inside a group and 4 outside, log-normal noise 0.3; what a
    client trusts is the plain logistic of the loss.
    """
    with_hints = candidates.hearsay
    for hints in (True, False):
        candidates.hearsay = with_hints if hints else lambda *_: torch.zeros(2000, 2000)
        rng = torch.Generator().manual_seed(0)
        group = torch.arange(2000) % (2000 // GROUP)
        same = (group[:, None] == group).fill_diagonal_(False)
        loss = torch.full((2000, 2000), torch.nan, dtype=torch.float64)
        everyone = torch.ones(2000, dtype=torch.bool)
        found: list[float] = []
        for t in range(11):
            w = torch.sigmoid(math.log(5) - loss).nan_to_num(0.0)
            asked = candidates.choose_candidates(w, loss.isfinite(), everyone, 64, seed=0, round=t)
            noise = torch.randn(2000, 2000, generator=rng, dtype=torch.float64)
            fresh = torch.where(same, 0.4, 4.0) * torch.exp(0.3 * noise)
            loss = torch.where(asked, fresh, loss)
            found.append(float((loss.isfinite() & same).sum() / same.sum()))
        yield {"what": "search", "peers_of_peers": hints, "found": [round(f, 3) for f in found]}


def quality() -> Iterator[Row]:
    for seed in (0, 1):
        for clients in (400, 2000):
            federation = planted(clients, seed)
            blocks = clients // GROUP
            cases = [
                ("local", scool.LocalOnly(sgd=method(None, 0, clients).sgd)),
                ("truth", scool.Truth(sgd=method(None, 0, clients).sgd)),
                ("sbm, all pairs", method(scool.SBM(num_blocks=blocks), 0, clients)),
                ("sbm, candidates", method(scool.SBM(num_blocks=blocks), 64, clients)),
                ("attention, all pairs", method(scool.Attention(), 0, clients)),
                ("attention, candidates", method(scool.Attention(), 64, clients)),
            ]
            for name, algorithm in cases:
                result = scool.fit(
                    federation, "linear", algorithm, rounds=15, seed=seed, eval_every=15
                )
                last = result.history[-1]
                yield {
                    "what": "quality",
                    "clients": clients,
                    "groups": blocks,
                    "seed": seed,
                    "method": name,
                    "accuracy": round(last["accuracy_mean"], 2),
                    "graph_l1": round(last["graph_l1"], 3),
                    "graph_ari": round(last["graph_ari"], 3),
                    "in_group": round(in_group(result), 3),
                    "gigabytes": round(result.bytes_sent / 1e9, 3),
                    "seconds": round(result.seconds, 1),
                }


def in_group(result: scool.Result) -> float:
    """Weight that clients give to their own group, themselves included."""
    groups, graph = result.federation.groups, result.graph
    assert groups is not None and graph is not None
    return float((graph * (groups[:, None] == groups)).sum() / len(groups))


class Clock:
    """CPU seconds of each round and of the verbs of the engine in it, and what travelled."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.parts: list[dict[str, float]] = []
        self.traffic: Mapping[str, int] = {}
        self.now: dict[str, float] = defaultdict(float)

    def watch(self, name: str) -> None:
        verb = getattr(LocalEngine, name)

        def timed(engine: LocalEngine, *args: Any, **options: Any) -> Any:
            began = time.process_time()
            result = verb(engine, *args, **options)
            self.now[name] += time.process_time() - began
            return result

        setattr(LocalEngine, name, timed)

    def start(self, header: Mapping[str, Any], first_round: int) -> None:
        self.ends, self.parts = [time.process_time()], []

    def round(self, row: Mapping[str, Any], info: Info) -> None:
        self.ends.append(time.process_time())
        self.parts.append(dict(self.now))
        self.traffic = row["traffic"]
        self.now.clear()

    def end(self, result: Any) -> None:
        pass


def scaling() -> Iterator[Row]:
    """Rounds 1 to 5 of a run with 64 candidates, medians; inputs and model as of the digits."""
    clock = Clock()
    verbs = ("train", "cross_loss", "mix")
    for verb in verbs:
        clock.watch(verb)
    for name in ("sbm", "attention"):
        seconds: dict[str, list[float]] = defaultdict(list)
        sizes = (250, 500, 1000, 2000)
        for clients in sizes:
            prior = scool.SBM(num_blocks=40) if name == "sbm" else scool.Attention()
            algorithm = method(prior, 64, clients)
            federation = planted(clients, 0, num_features=64, num_outputs=10)
            scool.fit(federation, "mlp", algorithm, rounds=7, eval_every=7, recorders=[clock])
            rounds = [b - a for a, b in zip(clock.ends[1:6], clock.ends[2:7], strict=True)]
            parts = {v: statistics.median(p[v] for p in clock.parts[1:6]) for v in verbs}
            total = statistics.median(rounds)
            row = {"total": total, **parts, "graph": total - sum(parts.values())}
            for part, value in row.items():
                seconds[part].append(value)
            yield {
                "what": "scaling",
                "prior": name,
                "clients": clients,
                "seconds": {part: round(value, 3) for part, value in row.items()},
                "megabytes": {use: round(n / 1e6, 1) for use, n in clock.traffic.items()},
            }
        exponents = {part: round(slope(sizes, values), 2) for part, values in seconds.items()}
        yield {"what": "scaling", "prior": name, "exponents": exponents}


def slope(clients: tuple[int, ...], seconds: list[float]) -> float:
    x, y = ([math.log(v) for v in values] for values in (clients, seconds))
    return statistics.linear_regression(x, y).slope


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in {"search": search, "quality": quality, "scaling": scaling}[sys.argv[1]]():
        print(json.dumps(line), flush=True)
