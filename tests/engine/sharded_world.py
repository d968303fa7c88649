"""What the tests of the sharded engine run, in one process and in several.

As a program it is one rank: `python sharded_world.py RANK SIZE STORE OUT` writes what it found.
"""

import datetime
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scool.algorithms import METHODS
from scool.contracts import Engine
from scool.data.catalogue import DataConfig
from scool.engine.ranks.group import Ranks, join_group, leave_group
from scool.engine.sharded import ShardedEngine
from scool.evaluation.scores import chosen_metrics, evaluate
from scool.graph.edges import as_matrix
from scool.health import Attendance
from scool.models import parameters_of
from scool.run.config import default_run
from scool.run.options import with_options
from scool.run.prepare import prepare_data
from toys import classification, overflowing, poisoned, regression, tanh_net

SIZES = (5, 3, 8, 6, 4, 7, 5)  # seven clients: 2, 3 and 4 ranks hold unequal numbers
ROUNDS = 3
SPLIT = "\n"  # between the case and the name of a tensor
SOME = ("local", "scool-sbm", "scool-attention", "dpsgd", "fedavg", "cga", "fedfomo", "l2c")
"""A method for each way in which ranks talk to each other."""
METRIC = {"classification": ("auc",), "regression": ("mae",)}


OWNERS = "owners that come and go"
COMING = Attendance(
    len(SIZES),
    seed=3,
    participation=0.6,
    stragglers=0.5,
    factors=torch.tensor([1.0, 0.5, 1.0, 2.0, 1.0, 0.5, 1.0], dtype=torch.float64),
)


def method(name: str, **options: Any) -> Any:
    """A method as `scool run` would set it up, sparse after the second round."""
    algorithm = default_run(name, DataConfig()).algorithm
    algorithm = with_options(
        algorithm, {"lr": 0.05, "epochs": 2, "batch_size": 4} | options, "test"
    )
    if name.startswith("scool-"):
        algorithm = with_options(algorithm, {"sparsify_round": 1, "fraction": 0.4}, "test")
    return algorithm


def cases(ranks: int) -> dict[str, tuple[Any, Any]]:
    """(method, federation) by name: of four ranks some methods, of two all, of three also the
    options with verbs of their own, and clients that break."""
    plain, targets = classification(SIZES), regression(SIZES)
    names = SOME if ranks == 4 else sorted(METHODS)
    found = {name: (method(name), plain) for name in names}
    if ranks != 3:
        return found
    some = SOME[1:]
    found |= {f"{name}, a NaN": (method(name), poisoned(plain, 3)) for name in some}
    found |= {f"{name}, overflow": (method(name), overflowing(plain, 5)) for name in some}
    found |= {f"{name}, regression": (method(name, lr=0.02), targets) for name in some}
    sbm = "scool-sbm"
    found["exact"] = (method(sbm, steps=1, cross_gradient="exact"), plain)
    found["exact, a NaN"] = (method(sbm, steps=1, cross_gradient="exact"), poisoned(plain, 0))
    found["pair draws"] = (method(sbm, cross_draw="pair", cross_samples=2), plain)
    found["coupling"] = (method(sbm, model_coupling=0.1), plain)
    found["candidates"] = (method(sbm, candidates=4), plain)
    for name in ("scool-sbm", "fedavg", "cga"):
        found[f"{name}, {OWNERS}"] = (method(name), plain)
    found["one step"] = (method("cga", steps=1, beta=0.5), plain)
    return found


def steps(
    algorithm: Any, federation: Any, build: Callable[..., Engine], **options: Any
) -> dict[str, Tensor]:
    """Some rounds, and all that they give: models, graphs, scores, and what it cost."""
    federation = prepare_data(federation, algorithm, seed=3)
    module = tanh_net(outputs=federation.num_outputs)
    engine = build(federation, module, seed=3, device="cpu", **options)
    state = algorithm.init(engine, parameters_of(module))
    predictor = algorithm.predictor(module, federation.task)
    judge = engine if predictor is module else engine.view("scores", predictor)
    found: dict[str, Tensor] = {}
    for t in range(ROUNDS):
        engine.begin_round(t)
        state, info = algorithm.step(engine, state, t)
        for name, value in info.items():
            parts = value if isinstance(value, dict) else {"": value}  # by kind, of `scool`
            found |= {
                f"{t}/{name}{part}": torch.as_tensor(as_matrix(values)).double()
                for part, values in parts.items()
            }
        found[f"{t}/active"] = engine.active.double()
        metrics = chosen_metrics(METRIC[federation.task], federation.task)
        scores = evaluate(judge, state.theta, federation, metrics=metrics)
        found |= {f"{t}/score": scores.score, f"{t}/test_loss": scores.loss}
        found |= {f"{t}/{name}": values for name, values in scores.metrics.items()}
        traffic = engine.ledger.close_round()
        for kind in ("messages", "bytes"):
            counted = getattr(traffic, kind)
            found |= {f"{t}/ledger/{kind}/{n}": torch.tensor(float(c)) for n, c in counted.items()}
        found[f"{t}/ledger/samples"] = torch.tensor(float(traffic.samples))
    theta = state.theta
    if isinstance(engine, ShardedEngine):
        theta = {n: engine._exchange.rows(rows) for n, rows in theta.items()}
        sent = engine.ranks.ledger.close_round().total_bytes
        found["rank_bytes"] = torch.tensor(float(sent))
    return found | {f"theta/{n}": rows for n, rows in theta.items()}


def all_steps(build: Callable[..., Engine], ranks: int = 3) -> dict[str, Tensor]:
    torch.set_num_threads(1)
    found: dict[str, Tensor] = {}
    for case, (algorithm, federation) in cases(ranks).items():
        options = {"attendance": COMING} if case.endswith(OWNERS) else {}
        part = steps(algorithm, federation, build, **options)
        found |= {f"{case}{SPLIT}{name}": t.contiguous().clone() for name, t in part.items()}
    return found


def sharded(federation: Any, module: Any, **options: Any) -> ShardedEngine:
    return ShardedEngine(federation, module, ranks=Ranks(), **options)


def check_order_of_names(ranks: Ranks) -> None:
    """A tree whose names come in another order on every second rank arrives as it was sent."""
    names = ["a", "b"] if ranks.rank % 2 else ["b", "a"]
    tree = {name: torch.full((1, 2 if name == "a" else 5), float(ranks.rank)) for name in names}
    ahead, behind = (ranks.rank + 1) % ranks.size, (ranks.rank - 1) % ranks.size
    found = ranks.trade(tree, behind, 1, tree, ahead)
    assert all(bool((found[name] == ahead).all()) for name in names)


def gloo_threads() -> list[str]:
    """Names of this process's threads that belong to gloo, where the system tells them (Linux)."""
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]


def main(rank: int, size: int, store: str, out: str) -> None:
    join_group(dist.FileStore(store, size), rank, size, datetime.timedelta(seconds=60))
    check_order_of_names(Ranks())
    found = all_steps(sharded, size)
    save_file(found, f"{out}/{rank}.safetensors")
    leave_group()
    assert not gloo_threads(), "they would abort the process when it ends"


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
