"""Run folders are read whole or broken, and what is missing is named."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from scool.errors import RunError
from scool.report.records import find_runs, missing_methods, read_run


def test_a_whole_run_has_no_problems(made: Path) -> None:
    record = read_run(made / "scool-sbm-1")
    assert record.problems == []
    assert (record.method, record.seed, record.status, record.rounds) == (
        "scool-sbm",
        1,
        "finished",
        4,
    )
    assert record.num_clients == 6 and len(record.evaluated) == 4
    assert sorted(record.graph_files) == [0, 1, 2, 3] and len(record.seconds) == 4
    memberships = record.memberships()
    assert memberships is not None
    torch.testing.assert_close(memberships.sum(dim=1), torch.ones(6, dtype=torch.float64))
    blocks = torch.tensor(record.rows[-1]["blocks"])
    assert torch.equal(memberships.argmax(dim=1), blocks)
    found = record.last_graph()
    assert found is not None and found[0] == 3 and found[1].shape == (6, 6)


def test_runs_are_found_in_the_order_of_the_comparison(made: Path) -> None:
    names = [path.name for path in find_runs([made])]
    assert names == [f"{m}-{s}" for m in ("local", "scool-sbm", "scool-attention") for s in (0, 1)]
    assert find_runs([made / "local-0", made / "local-0"]) == [made / "local-0"]
    assert len(find_runs([made.parent])) == 6, "comparisons inside a folder are found, too"


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is no folder"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(RunError, match="holds no run"):
        find_runs([tmp_path])
    with pytest.raises(RunError, match="neither run"):
        read_run(tmp_path)


def test_methods_that_have_not_started_are_named(comparison: Path) -> None:
    assert missing_methods(comparison) == []
    for seed in (0, 1):
        shutil.rmtree(comparison / f"scool-sbm-{seed}")
    assert missing_methods(comparison) == ["scool-sbm"]


def break_header(run: Path) -> None:
    (run / "run.json").write_text('{"method": ')


def change_header(run: Path) -> None:
    header = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(header | {"config": "x"}))


def drop_header(run: Path) -> None:
    (run / "run.json").unlink()


def cut_metrics(run: Path) -> None:
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text[: len(text) * 6 // 10])


def lose_a_client(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows[-1]["scores"].pop()
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def spoil_a_score(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows[1]["scores"][0] = "high"
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def drop_metrics(run: Path) -> None:
    (run / "metrics.jsonl").unlink()


def drop_graphs(run: Path) -> None:
    shutil.rmtree(run / "graphs")


def drop_clients(run: Path) -> None:
    (run / "clients.safetensors").unlink()


def break_clients(run: Path) -> None:
    (run / "clients.safetensors").write_bytes(b"no")


def go_on(run: Path) -> None:
    header = json.loads((run / "run.json").read_text())
    header |= {"status": "running", "rounds": 9}
    (run / "run.json").write_text(json.dumps(header))


BROKEN = [
    (break_header, "run.json is damaged"),
    (change_header, "run.json is damaged (config = 'x' is not a JSON object or null)"),
    (drop_header, "run.json is missing"),
    (cut_metrics, "metrics.jsonl is damaged from line 3 on: 2 rounds are shown"),
    (lose_a_client, "metrics.jsonl is damaged from line 4 on: 3 rounds are shown"),
    (spoil_a_score, "metrics.jsonl is damaged from line 2 on: 1 rounds are shown"),
    (drop_metrics, "metrics.jsonl is missing"),
    (drop_graphs, "no graph is recorded"),
    (drop_clients, "clients.safetensors is missing"),
    (break_clients, "clients.safetensors cannot be read"),
    (go_on, "killed: 4 of 9 rounds"),
]


@pytest.mark.parametrize(("harm", "words"), BROKEN, ids=[f.__name__ for f, _ in BROKEN])
def test_broken_folders_say_what_is_missing(harm, words: str, comparison: Path) -> None:
    run = comparison / "scool-sbm-0"
    harm(run)
    assert any(words in problem for problem in read_run(run).problems)


def test_a_damaged_graph_is_left_out(comparison: Path) -> None:
    run = comparison / "scool-sbm-0"
    (run / "graphs" / "000003.safetensors").write_bytes(b"half")
    record = read_run(run)
    assert record.graph(3) is None
    found = record.last_graph()
    assert found is not None and found[0] == 2


def test_a_header_that_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(RunError, match="says nothing and"):
        read_run(tmp_path)
