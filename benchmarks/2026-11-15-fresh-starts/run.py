"""Should memberships compete with fresh ones while all pairs are measured?

python benchmarks/2026-11-15-fresh-starts/run.py > results.jsonl

Planted groups of 50 clients with a linear teacher each, all pairs measured until round 10; SBM and
MMSBM with as many blocks as groups and with four more; with fresh starts (`fresh`, as it is) and
without (`warm`, the last memberships alone).
"""

import json
from collections.abc import Iterator
from typing import Any

import scool
from scool.priors import pairs

GROUP, ROUNDS, SEEDS = 50, 15, range(4)
CASES = (("sbm", 200), ("sbm", 400), ("mmsbm", 200))


def results() -> Iterator[dict[str, Any]]:
    as_it_is = pairs.DENSE
    for prior, clients in CASES:
        for surplus in (0, 4):
            for start in ("warm", "fresh"):
                pairs.DENSE = as_it_is if start == "fresh" else 2.0
                for seed in SEEDS:
                    row = {"prior": prior, "clients": clients, "surplus": surplus, "start": start}
                    yield row | {"seed": seed} | measure(prior, clients, surplus, seed)


def measure(prior: str, clients: int, surplus: int, seed: int) -> dict[str, float]:
    groups = clients // GROUP
    kind = scool.SBM if prior == "sbm" else scool.MMSBM
    method = scool.SCooL(
        prior=kind(num_blocks=groups + surplus),
        sgd=scool.LocalSGD(lr=0.2, batch_size=8, epochs=3),
        draw=scool.CrossDraw(cross_samples=20),
        fraction=GROUP / clients,
        candidates=0,
    )
    federation = scool.synthetic(clients, groups, 20, seed=seed, test_size=200)
    result = scool.fit(federation, "linear", method, rounds=ROUNDS, seed=seed, eval_every=ROUNDS)
    last = result.history[-1]
    names = {"accuracy": "accuracy_mean", "l1": "graph_l1", "ari": "graph_ari"}
    found = {name: round(last[key], 3) for name, key in names.items()}
    return found | {"seconds": round(result.seconds, 1)}


if __name__ == "__main__":
    for row in results():
        print(json.dumps(row), flush=True)
