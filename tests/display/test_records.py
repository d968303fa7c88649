"""Run folders are read whole or broken, and what is missing is named."""

import shutil
from pathlib import Path

import pytest
import torch

from records import change_header, change_rows
from scool.display.records import find_runs, missing_methods, read_run
from scool.errors import RunError
from scool.recording.seals import DamageWarning


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
    with pytest.raises(RunError, match="is not a folder"):
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


def spoil_header(run: Path) -> None:
    change_header(run, config="x")


def flip_header(run: Path) -> None:
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text.replace('"seed": 0', '"seed": 1'))


def drop_header(run: Path) -> None:
    (run / "run.json").unlink()


def cut_metrics(run: Path) -> None:
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text[: len(text) * 6 // 10])


def lose_a_client(run: Path) -> None:
    change_rows(run, lambda rows: rows[-1]["scores"].pop() and None)


def spoil_a_score(run: Path) -> None:
    change_rows(run, lambda rows: rows[1].update(scores=["high", *rows[1]["scores"][1:]]))


def flip_a_score(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"round": 2', b'"round":2 ')
    (run / "metrics.jsonl").write_bytes(b"".join(lines))


def lose_a_line(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join(lines[:-1]))


def drop_metrics(run: Path) -> None:
    (run / "metrics.jsonl").unlink()


def drop_graphs(run: Path) -> None:
    shutil.rmtree(run / "graphs")


def drop_clients(run: Path) -> None:
    (run / "clients.safetensors").unlink()


def break_clients(run: Path) -> None:
    (run / "clients.safetensors").write_bytes(b"no")


def go_on(run: Path) -> None:
    change_header(run, status="running", rounds=9)


BROKEN = [
    (break_header, "run.json is damaged"),
    (spoil_header, "run.json is damaged: config = 'x' is not a JSON object or null"),
    (flip_header, "run.json is damaged: its content does not match its checksum"),
    (drop_header, "run.json is missing. Put a whole one in its place"),
    (cut_metrics, "metrics.jsonl is damaged: it ends after line 2, and 4 were written"),
    (lose_a_line, "metrics.jsonl is damaged: it ends after line 3, and 4 were written"),
    (lose_a_client, "metrics.jsonl is damaged: line 4: scores has 5 clients"),
    (spoil_a_score, "metrics.jsonl is damaged: line 2: scores = ['high'"),
    (flip_a_score, "metrics.jsonl is damaged: line 3: it does not match its checksum"),
    (drop_metrics, "metrics.jsonl is missing"),
    (drop_graphs, "graphs/000003.safetensors is missing. Bring back a whole copy"),
    (drop_clients, "clients.safetensors is missing. Bring back a whole copy"),
    (break_clients, "clients.safetensors is damaged: it is cut off"),
]


@pytest.mark.parametrize(("harm", "words"), BROKEN, ids=[f.__name__ for f, _ in BROKEN])
def test_broken_folders_say_what_is_missing(harm, words: str, comparison: Path) -> None:
    run = comparison / "scool-sbm-0"
    harm(run)
    with pytest.warns(DamageWarning) as said:
        record = read_run(run)
        record.last_graph()
    assert any(words in problem for problem in record.problems)
    assert any(words in str(warning.message) for warning in said)


def test_a_run_that_was_killed_is_not_damaged(comparison: Path) -> None:
    run = comparison / "scool-sbm-0"
    go_on(run)
    assert "killed: 4 of 9 rounds are recorded" in read_run(run).problems
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 4, "tra')  # where the kill came
    assert read_run(run).rounds == 4


def test_a_damaged_graph_is_left_out(comparison: Path) -> None:
    run = comparison / "scool-sbm-0"
    (run / "graphs" / "000003.safetensors").write_bytes(b"half")
    record = read_run(run)
    with pytest.warns(DamageWarning, match=r"000003\.safetensors is damaged: it is cut off"):
        assert record.graph(3) is None
    found = record.last_graph()
    assert found is not None and found[0] == 2


def test_a_header_that_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(RunError, match="says nothing and"):
        read_run(tmp_path)
