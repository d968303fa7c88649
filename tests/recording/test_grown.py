"""Records of rounds before a run had all its clients, read as those of all."""

from pathlib import Path

import pytest
import torch

from scool.graph.edges import Edges
from scool.recording.grown import widened, widened_row, widened_table
from scool.recording.lines import Log, read_rounds

ROW = {
    "round": 3,
    "train_loss": 0.5,
    "scores": [1.0, 2.0],
    "blocks": None,
    "metrics": {"f1": [0.5, None]},
    "tracks": {"alone": [0.1, 0.2], "graph": [0.9, 0.8]},
    "population": {"alone": 0.2, "graph": 0.8},
    "traffic": {"mix": 8},
    "quarantined": {},
}


def test_a_row_has_nothing_of_who_came_later() -> None:
    found = widened_row({**ROW, "absent": [1]}, 4)
    more = [None, None]
    assert found["scores"] == [1.0, 2.0, *more] and found["metrics"] == {"f1": [0.5, None, *more]}
    assert found["tracks"] == {"alone": [0.1, 0.2, *more], "graph": [0.9, 0.8, *more]}
    assert found["absent"] == [1, 2, 3] and found["blocks"] is None
    for name in ("round", "train_loss", "population", "traffic", "quarantined"):
        assert found[name] == ROW[name]
    assert widened_row(ROW, 2) is ROW and widened_row(ROW, 0) is ROW
    assert widened_row({**ROW, "absent": 1}, 4)["absent"] == 3  # of many clients their number
    bare = {"round": 0, "seconds": 0.5}
    assert widened_row(bare, 4) == bare


def test_a_graph_has_no_pairs_of_who_came_later() -> None:
    w = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    expected = torch.zeros(3, 3)
    expected[:2, :2] = w
    assert torch.equal(widened(w, 3), expected)
    found = widened(Edges.of(w), 3)
    assert isinstance(found, Edges) and torch.equal(found.dense(), expected)
    assert widened(w, 2) is w and widened(w, 0) is w
    assert torch.equal(widened_table(w, 3), expected[:, :2])
    assert torch.equal(widened_table(w, 0), w)


@pytest.mark.parametrize(("counts", "kept"), [([2, 2, 3], 3), ([2, 3, 2], 2)])
def test_scores_of_more_clients_may_follow_and_of_fewer_may_not(
    counts: list[int], kept: int, tmp_path: Path
) -> None:
    rows = [{"round": t, "scores": [1.0] * count} for t, count in enumerate(counts)]
    Log(tmp_path / "metrics.jsonl", "run", rows).rewrite()
    found = read_rounds(tmp_path / "metrics.jsonl", ())
    assert len(found.rows) == kept
    assert found.flaw is None or "scores has 2 clients, those before have 3" in found.flaw
