"""What a page says: lines, figures, orders, configuration."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import scool
from records import change_header, change_rows, make_old
from scool.display.differences import group_runs
from scool.display.page.content import page_content
from scool.display.records import find_runs, read_run
from scool.display.series import client_band, cumulative, curve, figures
from scool.recording.folder import RunFolder
from scool.recording.seals import DamageWarning
from toys import classification


def records_of(*paths: Path):
    return [read_run(path) for path in find_runs(paths)]


def test_figures_are_means_over_the_seeds(made: Path) -> None:
    runs = records_of(made / "scool-sbm-0", made / "scool-sbm-1")
    results = [run.header["result"] for run in runs]
    found = figures(runs)

    def mean(name: str) -> float:
        return sum(result[name] for result in results) / 2

    assert found["score"] == pytest.approx(mean("accuracy_mean"))
    assert found["std"] == pytest.approx(mean("accuracy_std"))
    assert found["graph_l1"] == pytest.approx(mean("graph_l1"))
    assert found["bytes_sent"] == pytest.approx(mean("bytes_sent"))
    assert found["messages"] == pytest.approx(mean("messages"))
    assert found["seconds"] == pytest.approx(mean("seconds"), abs=2e-3)
    assert found["epochs"] == 4 and found["rounds"] == 4 and found["seeds"] == 2
    worst = [min(run.rows[-1]["scores"]) for run in runs]
    assert found["worst"] == pytest.approx(sum(worst) / 2)


def test_curves_have_mean_and_band(made: Path) -> None:
    runs = records_of(made / "scool-sbm-0", made / "scool-sbm-1")
    line = curve(runs, "accuracy_mean")
    pair = [run.rows[2]["accuracy_mean"] for run in runs]
    assert line["round"] == [0, 1, 2, 3]
    assert line["mean"][2] == pytest.approx(sum(pair) / 2)
    assert (line["low"][2], line["high"][2]) == (min(pair), max(pair))
    band = client_band(runs, [2])
    scores = sorted(s for run in runs for s in run.rows[2]["scores"])
    assert scores[0] <= band["clients_low"][0] <= band["clients_high"][0] <= scores[-1]
    sent = cumulative(runs[0], "bytes")
    assert sent[3] == sum(row["bytes"] for row in runs[0].rows)


def test_seeds_share_a_line_and_other_options_do_not(made: Path, comparison: Path) -> None:
    groups = group_runs(records_of(made))
    assert list(groups) == ["local", "scool-sbm", "scool-attention"]
    assert groups["scool-sbm"] == [2, 3]
    config = RunFolder(comparison / "scool-sbm-0").header["config"]
    config["algorithm"]["fraction"] = 0.5
    change_header(comparison / "scool-sbm-0", config=config)
    groups = group_runs(records_of(made / "scool-sbm-0", comparison / "scool-sbm-0"))
    assert list(groups) == ["scool-sbm (fraction=0.225)", "scool-sbm (fraction=0.5)"]


def test_the_content_of_a_comparison(made: Path) -> None:
    values, blobs = page_content(records_of(made), "words")
    assert [line["label"] for line in values["lines"]] == ["local", "scool-sbm", "scool-attention"]
    assert len(values["federations"]) == 2, "a federation a seed"
    assert set(blobs) == {f"graph-{n}" for n in range(6)} | {"truth-0", "truth-1"}
    sbm = values["runs"][2]
    assert sbm["local"] == 0 and values["runs"][3]["local"] == 1
    assert [run["kin"] for run in values["runs"]] == [0, 1, 0, 1, 0, 1]
    assert sbm["graph"]["rounds"] == [0, 1, 2, 3]
    assert sorted(sbm["graph"]["learned_order"]) == list(range(6))
    assert len(sbm["graph"]["places"]) == 6 and sbm["blocks"] is not None
    order, groups = values["federations"][0]["true_order"], values["federations"][0]["groups"]
    assert [groups[i] for i in order] == sorted(groups)
    assert values["federations"][0]["true_words"] == "true group"
    counts = values["federations"][0]["counts"]["train"]
    assert [sum(row) for row in counts] == [24] * 6
    assert values["lines"][1]["sparsify_round"] == 1
    assert values["common"]["settings.rounds"] == "4"
    assert "algorithm.prior.num_blocks" in values["different"]
    assert values["problems"] == [] and all(run["problems"] == [] for run in values["runs"])
    json.dumps(values, allow_nan=False)


def test_clients_in_quarantine_are_in_no_block_and_come_last(with_quarantine: Path) -> None:
    attention, sbm = page_content(records_of(with_quarantine), "words")[0]["runs"]
    for run in (attention, sbm):  # the blocks of attention are its communities
        blocks, order = run["graph"]["learned_blocks"], run["graph"]["learned_order"]
        assert [block is None for block in blocks] == [False, True, False, False, False]
        assert sorted(order) == list(range(5)) and order[-1] == 1
    assert [row[1] for row in sbm["blocks"]] == [None, None] and attention["blocks"] is None
    assert sbm["memberships"][1] == [None, None]
    assert all(sum(sbm["memberships"][i]) == pytest.approx(1, abs=0.01) for i in (0, 2, 3, 4))


def test_older_records_have_a_block_for_everybody(with_quarantine: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(with_quarantine / "sbm", tmp_path / "run"))
    blocks = [row["blocks"] for row in RunFolder(run).rows()]
    assert all(some[1] is None for some in blocks)
    old = [{"blocks": [1 if block is None else block for block in some]} for some in blocks]
    change_rows(run, lambda rows: [row | more for row, more in zip(rows, old, strict=True)])
    (found,) = page_content(records_of(run), "words")[0]["runs"]
    assert found["graph"]["learned_blocks"][1] == 1 and found["blocks"][0][1] == 1


def test_without_groups_clients_stand_by_their_classes(tmp_path: Path) -> None:
    labels = [[1, 2], [0, 1], [1, 2], [0, 1]]
    clients = [(np.eye(4, dtype="float32"), np.array(own * 2)) for own in labels]
    federation = scool.from_arrays(clients, test_fraction=0.5)
    result = scool.fit(federation, "linear", scool.SCooL(), rounds=1, out=tmp_path)
    (about,) = page_content(records_of(tmp_path), "words")[0]["federations"]
    assert (about["true_order"], about["true_words"]) == ([1, 3, 0, 2], "classes")
    graph = result.graph
    assert graph is not None  # and in the pictures of a notebook
    for picture in (graph.plot(), federation.plot()):
        labels = [axes.get_ylabel() + axes.get_xlabel() for axes in picture.axes]
        assert any("client, by classes" in label for label in labels)
        names = [t.get_text() for axes in picture.axes[:1] for t in axes.get_xticklabels()]
        assert names == ["1", "3", "0", "2"]


def test_without_a_local_run_there_is_none_to_compare_with(made: Path) -> None:
    values, _ = page_content(records_of(made / "scool-sbm-0"), "words")
    assert values["runs"][0]["local"] is None


def test_old_folders_show_what_they_have(comparison: Path) -> None:
    for run in find_runs([comparison]):
        make_old(run)
        (run / "clients.safetensors").unlink()
    values, blobs = page_content(records_of(comparison), "words")
    assert not any(name.startswith("truth") for name in blobs)
    assert values["federations"][0]["clients"] == 6
    assert values["federations"][0]["counts"] is None
    assert values["runs"][2]["graph"]["rounds"] == [0, 1, 2, 3]
    assert any("older version" in words for words in values["runs"][0]["problems"])


def test_a_damaged_checkpoint_is_named_beside_older_memberships(tmp_path: Path) -> None:
    run = tmp_path / "run"
    method = scool.SCooL(prior=scool.SBM(num_blocks=2))
    options = {"rounds": 2, "checkpoint_every": 1, "device": "cpu"}
    scool.fit(classification(), "linear", method, out=run, **options)
    newest = run / "checkpoint-000002.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(DamageWarning, match=f"{newest} is damaged: .* An older one is shown"):
        (found,) = page_content(records_of(run), "words")[0]["runs"]
    assert [len(row) for row in found["memberships"]] == [2] * 4
    assert any(words.startswith(f"{newest} is damaged") for words in found["problems"])


def test_a_run_without_records_is_content_too(comparison: Path) -> None:
    run = comparison / "local-0"
    for name in ("metrics.jsonl", "timing.jsonl"):
        (run / name).unlink()
    shutil.rmtree(run / "graphs")
    with pytest.warns(DamageWarning) as said:
        values, _ = page_content(records_of(run), "words")
    (line,) = values["lines"]
    assert line["score"]["round"] == [] and line["figures"]["score"] is None
    assert values["runs"][0]["graph"] is None
    aloud = [str(warning.message) for warning in said]
    for name in ("metrics.jsonl", "timing.jsonl", "graphs/000003.safetensors"):
        for words in (aloud, values["runs"][0]["problems"]):
            assert any(problem.startswith(f"{run / name} is missing") for problem in words)
