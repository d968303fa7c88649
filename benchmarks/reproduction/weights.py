"""Where the weights of recorded graphs lie, a line a round.

    python benchmarks/reproduction/weights.py RUN ...

Means over clients: the weight on oneself, on peers with the same classes, with some of them, with
none; the classes that a peer shares, mean over those with weight; those that the nearest client
shares.
"""

import sys
from pathlib import Path

import torch

from scool.display.records import read_run


def show(path: Path) -> None:
    record = read_run(path)
    assert record.clients is not None, f"{path} does not say who the clients were"
    has = record.clients.classes.double()
    shared = has @ has.T  # (K, K) common classes
    oneself = torch.eye(len(has), dtype=torch.bool)
    same = (shared == has.sum(dim=1)) & (shared == has.sum(dim=1)[:, None]) & ~oneself
    some = (shared > 0) & ~same & ~oneself
    nearest = shared.masked_fill(oneself, -1).amax(dim=1)
    for round in sorted(record.graph_files):
        w = record.graph(round)
        if w is None:
            continue
        parts = {"self": oneself, "same": same, "some": some, "none": shared == 0}
        found = [f"{name} {float((w * mask).sum() / len(w)):.3f}" for name, mask in parts.items()]
        peers = (w > 1e-3) & ~oneself
        common = float(shared[peers].mean()) if bool(peers.any()) else 0.0
        found += [f"a peer shares {common:.2f}", f"the nearest {float(nearest.mean()):.2f}"]
        print(f"{path} round {round + 1}: {', '.join(found)}")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        show(Path(name))
