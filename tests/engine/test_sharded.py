"""The same numbers with 1, 2, 3 and 4 ranks as in one process, for every method.

Tolerance: 1e-11 in float64, because sums are added up in another order. Who learns from whom, the
accuracies and the ledger of simulated traffic are equal exactly.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.sharded_world import SPLIT, all_steps, cases, sharded
from scool.engine.common import mixer
from scool.engine.ledger import edges_of
from scool.engine.local import LocalEngine
from scool.engine.ranks.group import Ranks
from scool.engine.ranks.placement import Placement, better_placement, cut
from scool.engine.sharded import ShardedEngine
from scool.errors import ConfigError, QuarantineError, RunError
from scool.models import parameters_of
from scool.recording import checkpoint
from scool.recording.checkpoint import flatten
from scool.recording.folder import RunFolder
from scool.recording.writer import RunWriter
from scool.run.progress import Progress
from toys import classification, poisoned, tanh_net

WORLD = Path(__file__).with_name("sharded_world.py")


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    return all_steps(LocalEngine)


def world(size: int, folder: Path) -> list[dict[str, Tensor]]:
    """What each of so many ranks found."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, WORLD, str(rank), str(size), folder / "store", folder],
            env=environment,
            stderr=subprocess.PIPE,
        )
        for rank in range(size)
    ]
    errors = [rank.communicate(timeout=120)[1].decode() for rank in ranks]
    assert not any(rank.returncode for rank in ranks), "\n".join(errors)
    return [load_file(folder / f"{rank}.safetensors") for rank in range(size)]


def assert_same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert {name for name in found if not name.endswith("rank_bytes")} == set(expected)
    for name, tensor in expected.items():
        is_exact = "/ledger/" in name or name.endswith(("/active", "/score"))
        atol = 0.0 if is_exact and "regression" not in name else 1e-11
        torch.testing.assert_close(
            found[name], tensor, rtol=atol, atol=atol, equal_nan=True, msg=lambda m, n=name: n + m
        )
        if name.endswith("graph"):
            assert torch.equal(found[name] != 0, tensor != 0), name


def test_one_rank_equals_the_engine_of_one_process(expected: dict[str, Tensor]) -> None:
    assert_same(all_steps(sharded), expected)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_give_the_same_numbers(
    size: int, expected: dict[str, Tensor], tmp_path: Path
) -> None:
    found = world(size, tmp_path)
    chosen = cases(size)
    assert_same(found[0], {n: t for n, t in expected.items() if n.split(SPLIT)[0] in chosen})
    for rank in found[1:]:  # what is replicated is equal to the bit
        assert rank.keys() == found[0].keys()
        for name, tensor in found[0].items():
            assert torch.equal(rank[name].nan_to_num(7.0), tensor.nan_to_num(7.0)), name
    alone, gossip = (found[0][f"{case}{SPLIT}rank_bytes"] for case in ("local", "dpsgd"))
    assert 0 < alone < gossip  # local learning shares numbers, never models


def test_more_ranks_than_clients_are_refused() -> None:
    with pytest.raises(ConfigError, match="ranks = 5 is not possible: there are 4 clients"):
        Placement.even(4, 5)


def test_a_strict_run_stops_at_a_client_that_is_not_finite() -> None:
    federation = poisoned(classification(), 2)
    with pytest.raises(QuarantineError, match="client 2 has non-finite inputs"):
        ShardedEngine(federation, tanh_net(), seed=0, ranks=Ranks(), device="cpu", strict=True)


def test_a_shard_holds_the_samples_of_its_clients_and_no_others() -> None:
    federation = classification()
    clients = torch.tensor([1, 3])
    shard = cut(federation, clients)
    assert shard.num_clients == 2 and len(shard.train.x) == int(
        federation.train.sizes[clients].sum()
    )
    for row, client in enumerate(clients.tolist()):
        mine, whole = shard.train, federation.train
        mask = whole.mask[client]
        assert torch.equal(mine.mask[row], mask)
        x, expected = mine.x[mine.index[row]], whole.x[whole.index[client]]
        assert torch.equal(x[mask], expected[mask]) and torch.equal(mine.y[row], whole.y[client])


def test_clients_that_learn_from_each_other_come_together() -> None:
    """Four communities of five, spread over all ids: on two ranks no model has to travel."""
    groups = torch.arange(20) % 4
    graph = (groups[:, None] == groups).double()
    before = Placement.even(20, 2)
    after = better_placement(before, graph)
    assert after is not None and after.counts == before.counts
    edges = edges_of(graph)
    assert before.abroad(edges) == 20 and after.abroad(edges) == 0
    assert better_placement(after, graph) is None  # nothing left to gain
    assert better_placement(before, torch.ones(20, 20)) is None  # everyone needs everyone
    assert better_placement(Placement.even(20, 1), graph) is None


def test_rows_move_with_their_clients() -> None:
    federation = classification((5, 3, 8, 6, 4))
    engine = sharded(federation, tanh_net(), seed=0, device="cpu")
    assert engine.owned.tolist() == [0, 1, 2, 3, 4]
    tree = {"x": torch.arange(5.0)}
    moved = engine.move(Placement(torch.zeros(5, dtype=torch.int64), 1), tree)
    assert moved["x"].tolist() == [0, 1, 2, 3, 4]


def test_checkpoints_of_ranks_use_their_memory_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Tensor] = []
    sizes: set[int] = set()
    monkeypatch.setattr(
        checkpoint, "_room_for", lambda t: taken.append(torch.empty_like(t)) or taken[-1]
    )
    engine = sharded(classification(), tanh_net(), seed=0, device="cpu")
    state = {"theta": engine.replicate(parameters_of(tanh_net())), "count": torch.tensor(0)}
    writer = RunWriter.create(tmp_path / "run", {"identity": {}})
    stacked = frozenset(name for name in flatten(state) if name.startswith("theta/"))
    progress = Progress(state, engine.active, writer, ranks=engine.ranks, stacked=stacked)
    for done in range(1, 6):
        progress.done = done
        state["count"] += 1
        progress.save(engine)
        progress.commit(wait=True)
        writer.flush()
        sizes.add(len(taken))
        saved = RunFolder(tmp_path / "run").load_checkpoint(done).tensors
        assert int(saved["count"]) == done and stacked < saved.keys()
    writer.close()
    assert len(sizes) == 1  # all of it in the first round


def test_thin_large_matrices_mix_like_dense_ones() -> None:
    w = torch.eye(1100).double() * 0.5
    w[torch.arange(1100), torch.arange(1100).roll(7)] += 0.5
    rows = torch.randn(1100, 3, dtype=torch.float64)
    edges = edges_of(w)
    share = w[edges.i, edges.j]
    found = mixer(edges, share, (1100, 1100), torch.device("cpu"), torch.float64)(rows)
    torch.testing.assert_close(found, w @ rows, rtol=0, atol=1e-15)


@pytest.mark.parametrize("width", [3, 5000])  # one block of columns, and several
def test_a_mix_may_take_the_place_of_what_is_mixed(width: int) -> None:
    engine = LocalEngine(classification((2,) * 1000), tanh_net(), seed=0, device="cpu")
    w = torch.rand(1000, 1000, dtype=torch.float64)
    tree = {"x": torch.randn(1000, width, 1, dtype=engine.dtype)}
    found = engine.mix(w, tree)["x"]
    kept = engine.mix(w, tree, overwrite=True)["x"]
    torch.testing.assert_close(kept, found, rtol=0, atol=1e-9)
    assert kept.data_ptr() == tree["x"].data_ptr() != found.data_ptr()


def test_ranks_that_hold_different_data_are_told_apart() -> None:
    ranks = Ranks()
    ranks.agree("data", "the same")
    ranks.share = lambda words: [words, "other"]  # what another process would say
    with pytest.raises(RunError, match="rank 1 has another data than rank 0"):
        ranks.agree("data", "the same")
