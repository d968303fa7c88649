"""Records become rows: by configuration, with both spreads, and no difference without its noise."""

import csv
import io
import json
import math
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.lines import Line2D

from records import change_rows
from scool.errors import RunError
from scool.recording.folder import RunFolder
from scool.recording.seals import DamageWarning
from scool.recording.writer import RunWriter
from scool.reproduction import measured as reproduced
from scool.reproduction.figures import figures_of, local_epochs, write_figures
from scool.reproduction.measured import (
    collect,
    find_records,
    stated_options,
    summarise_row,
    without_shortened,
)
from scool.reproduction.plan import Study, choose_rows
from scool.reproduction.rows import TABLE1, Row
from scool.reproduction.seed_noise import noise
from scool.reproduction.tables import (
    as_json,
    as_latex,
    as_markdown,
    family_tables,
    fill_page,
    table_csv,
)
from study_records import BENCHMARKS, find_studies, restored

ROOT = Path(__file__).parents[2]
ROWS = {row.name: row for row in TABLE1}
STUDY = Study()


def record(
    place: Path,
    row: Row,
    seed: int,
    accuracy: float,
    *,
    study: Study = STUDY,
    rounds: int = 0,
    status: str = "finished",
    started: str = "2030",
    graphs: bool = False,
) -> Path:
    """A run folder as `scool reproduce` leaves it, three clients, two evaluations."""
    config = study.config(row, seed).to_dict()
    rounds = rounds or row.rounds
    header = {
        "method": row.method,
        "seed": seed,
        "rounds": rounds,
        "status": status,
        "started": started,
    }
    path = place / f"{row.name}-{seed}-{rounds}-{started}"
    folder = RunWriter.create(path, {**header, "config": config, "hardware": {"device": "toy"}})
    for t, score in ((0, accuracy + 1), (rounds - 1, accuracy)):
        line = {"round": t, "train_loss": 1.0, "accuracy_mean": score, "accuracy_std": 2.0 + seed}
        line |= {"scores": [score] * 3, "graph_l1": 0.5, "bytes": 600, "messages": 2, "epochs": 5}
        folder.append("metrics.jsonl", line)
        folder.append("timing.jsonl", {"round": t, "seconds": 1.5})
        if graphs:
            folder.write_graph(t, torch.eye(3))
    for t in range(3):
        folder.append("graph_error.jsonl", {"round": t, "graph_l1": 1.0 - t / 10})
    return path


def summaries(
    place: Path, rows: tuple[Row, ...], study: Study = STUDY
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    measured, notes = collect(study, rows, [place])
    return {m.row.name: summarise_row(m, study, measured) for m in measured}, notes


def test_means_and_both_spreads(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((90.0, 91.0, 92.0)):
        record(tmp_path, ROWS["scool-sbm"], seed, accuracy)
    found, notes = summaries(tmp_path, TABLE1)
    assert list(found) == ["scool-sbm"] and notes == []
    row = found["scool-sbm"]
    assert row["accuracy"] == 91.0 and row["best_accuracy"] == 92.0 and row["seeds"] == [0, 1, 2]
    assert row["std_clients"] == 3.0 and row["std_seeds"] == 1.0
    assert row["paper"] == 91.37 and row["difference"] == pytest.approx(-0.37)
    assert row["noise"] == pytest.approx(4.30 * math.sqrt(1 / 3 + 1 / 5))
    assert row["verdict"] == "within seed noise"
    assert row["bytes_sent"] == 1200 and row["seconds"] == 3.0 and row["epochs"] == 10


def test_one_seed_is_called_so_and_a_clear_difference_is_not(tmp_path: Path) -> None:
    record(tmp_path, ROWS["local"], 0, 90.0)
    for seed, accuracy in enumerate((75.0, 75.1)):
        record(tmp_path, ROWS["fedavg"], seed, accuracy)
    found, _ = summaries(tmp_path, TABLE1)
    assert found["local"]["verdict"] == "one seed" and found["local"]["std_seeds"] is None
    assert found["fedavg"]["verdict"] == "" and found["fedavg"]["difference"] > 4
    assert noise([1.0]) is None and noise([2.0, 2.0]) == 0.0
    assert noise([0.0, 1.0] * 10) == pytest.approx(2.23 * math.sqrt(0.25 * 20 / 19 / 20))


def test_of_the_authors_statements_the_number_of_seeds_is_not_known(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((91.0, 92.0)):
        record(tmp_path, ROWS["scool-sbm-released"], seed, accuracy)
    row = summaries(tmp_path, TABLE1)[0]["scool-sbm-released"]
    assert row["noise"] == pytest.approx(12.71 * math.sqrt(0.5) * math.sqrt(1 / 2 + 1))


def test_changes_are_taken_seed_by_seed(tmp_path: Path) -> None:
    """Seeds differ by ten points, the change is the same in all: no noise in it."""
    rows = choose_rows("ablations", "null-0,cross-10")
    by_name = {row.name: row for row in rows}
    for seed, base in enumerate((70.0, 80.0, 90.0)):
        record(tmp_path, ROWS["scool-sbm"], seed, base)
        record(tmp_path, by_name["null-0"], seed, base - 1 - seed / 100)
        record(tmp_path, by_name["cross-10"], seed, base + (seed - 1))
    measured, _ = collect(STUDY, rows, [tmp_path])
    found = {(m.row.family, m.row.name): summarise_row(m, STUDY, measured) for m in measured}
    change = found["null-model", "null-0"]
    assert change["change"] == pytest.approx(-1.01) and change["change_verdict"] == ""
    assert change["against"] == "scool-sbm" and change["std_seeds"] > 9
    assert change["change_seeds"] == 3
    assert found["cross-losses", "cross-10"]["change_verdict"] == "within seed noise"
    assert found["cross-losses", "scool-sbm"]["against"] == ""
    assert change["paper"] is None  # only the table stands beside the paper
    latex = as_latex("ablations", STUDY, list(found.values()))
    assert latex.count(r"\emph{null-model}") == latex.count(r"\emph{cross-losses}") == 1


def test_an_ablation_that_is_its_reference_is_called_the_same_run(tmp_path: Path) -> None:
    record(tmp_path, ROWS["scool-sbm"], 0, 70.0)
    found, _ = summaries(tmp_path, choose_rows("ablations", "blocks-10,blocks-5"))
    assert list(found) == ["scool-sbm", "blocks-10"]
    assert found["blocks-10"]["change_verdict"] == "the same run"


def test_runs_of_other_lengths_stand_apart(tmp_path: Path) -> None:
    record(tmp_path, ROWS["local"], 0, 70.0, rounds=5)
    record(tmp_path, ROWS["local"], 1, 60.0, rounds=2)
    measured, _ = collect(STUDY, TABLE1, [tmp_path])
    assert [(m.rounds, list(m.accuracies)) for m in measured] == [(5, [0]), (2, [1])]
    found = [summarise_row(m, STUDY, measured) for m in measured]
    assert [row["difference"] for row in found] == [None, None]
    assert "60.00 (2 of 100 rounds)" in as_markdown("table1", STUDY, found, [])
    few = {**found[1], "epochs": 0.5}
    assert "| 0.500 | 0.5 | 1.2 kB |" in as_markdown("table1", STUDY, [few], [])


def test_whole_runs_replace_shortened_ones_unless_those_are_asked_for(tmp_path: Path) -> None:
    record(tmp_path, ROWS["local"], 0, 90.0)
    short = record(tmp_path, ROWS["local"], 1, 60.0, rounds=2)
    measured, _ = collect(STUDY, TABLE1, [tmp_path])
    shown, notes = without_shortened(measured, STUDY)
    assert [(m.rounds, list(m.accuracies)) for m in shown] == [(100, [0])]
    assert notes == [f"{short} is not shown: 2 rounds only"]
    shown, notes = without_shortened(measured, Study(rounds=2))
    assert [m.rounds for m in shown] == [100, 2] and not notes


def test_of_a_longer_run_the_first_rounds_count(tmp_path: Path) -> None:
    """At equal work: `--results ... --rounds 1`; a round that nobody scored is no end."""
    whole = record(tmp_path, ROWS["ditto"], 0, 90.0, graphs=True)
    found, notes = summaries(tmp_path, TABLE1, Study(rounds=1))
    row = found["ditto"]
    assert (row["accuracy"], row["rounds"], row["difference"]) == (91.0, 1, None) and not notes
    assert (row["epochs"], row["bytes_sent"], row["seconds"]) == (5, 600, 1.5)  # of that round
    (measured,), _ = collect(Study(rounds=1), TABLE1, [tmp_path])
    assert list(measured.records[0].graph_files) == [0]
    found, notes = summaries(tmp_path, TABLE1, Study(rounds=7))
    assert not found and notes == [f"{whole} is left out: round 7 was not evaluated"]


def test_of_shortened_runs_the_longest_is_shown(tmp_path: Path) -> None:
    for rounds in (2, 5):
        record(tmp_path, ROWS["local"], 0, 60.0 + rounds, rounds=rounds)
    measured, _ = collect(STUDY, TABLE1, [tmp_path])
    shown, notes = without_shortened(measured, STUDY)
    assert [m.rounds for m in shown] == [5] and len(notes) == 1


def test_shortened_ablations_are_compared_with_shortened_runs(tmp_path: Path) -> None:
    ablation = choose_rows("ablations", "local-no-augment")
    record(tmp_path, ROWS["local"], 0, 90.0)
    record(tmp_path, ROWS["local"], 0, 60.0, rounds=2)
    record(tmp_path, ablation[1], 0, 58.0, rounds=2)
    measured, _ = collect(STUDY, ablation, [tmp_path])
    shown, _ = without_shortened(measured, STUDY)
    found = [summarise_row(m, STUDY, measured) for m in shown]
    assert [row["rounds"] for row in found] == [100, 2] and found[1]["change"] == -2.0


def test_families_show_what_was_compared(tmp_path: Path) -> None:
    rows = choose_rows("ablations", "weight-decay,null-model")
    for name in ("scool-sbm", "scool-attention", "local"):
        record(tmp_path, ROWS[name], 0, 90.0)
    by_name = {row.name: row for row in rows}
    measured, _ = collect(STUDY, rows, [tmp_path])
    none = [summarise_row(m, STUDY, measured) for m in measured]
    assert family_tables(none) == ""
    assert "No change was measured together with" in as_markdown("ablations", STUDY, none, [])
    record(tmp_path, by_name["local-weight-decay"], 0, 91.0)
    measured, _ = collect(STUDY, rows, [tmp_path])
    text = family_tables([summarise_row(m, STUDY, measured) for m in measured])
    assert text.startswith("### weight-decay") and "null-model" not in text
    lines = [line.split(" | ")[0] for line in text.splitlines()[4:]]
    assert lines == ["| Local SGD", "| local, weight decay 5e-4"]  # no rows without a change


def test_rows_of_the_table_are_compared_with_scool_seed_by_seed(tmp_path: Path) -> None:
    for seed, ours, theirs in ((0, 90.0, 80.0), (1, 92.0, 81.9), (2, 70.0, 60.1)):
        record(tmp_path, ROWS["scool-sbm"], seed, ours)
        record(tmp_path, ROWS["local"], seed, theirs)
    record(tmp_path, ROWS["fedavg"], 0, 99.0)
    found, _ = summaries(tmp_path, TABLE1)
    text = as_markdown("table1", STUDY, list(found.values()), [])
    assert "| difference | − scool-sbm | L1 |" in text
    changes = {name: (row["change"], row["change_verdict"]) for name, row in found.items()}
    assert changes["local"] == (pytest.approx(-10.0), "")  # though the seeds differ by twenty
    assert changes["fedavg"] == (pytest.approx(9.0), "one seed")
    assert changes["scool-sbm"] == (None, "")
    record(tmp_path, ROWS["dpsgd-1-step"], 0, 20.0, rounds=100)  # a hundred steps, not epochs
    assert summaries(tmp_path, TABLE1)[0]["dpsgd-1-step"]["change"] is None


def test_the_newest_run_of_a_seed_counts_and_unfinished_ones_do_not(tmp_path: Path) -> None:
    old = record(tmp_path / "z", ROWS["local"], 0, 10.0, started="2029")
    record(tmp_path / "a", ROWS["local"], 0, 90.0, started="2031")  # whatever its folder is called
    record(tmp_path, ROWS["local"], 1, 90.0, status="interrupted")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/run.json").write_text("{")
    found, notes = summaries(tmp_path, TABLE1)
    assert found["local"]["accuracy"] == 90.0 and found["local"]["seeds"] == [0]
    assert any(f"{old} is left out" in note for note in notes)
    assert any("interrupted" in note for note in notes)


def test_unmasked_accuracy_has_a_column_where_it_was_measured(tmp_path: Path) -> None:
    path = record(tmp_path, ROWS["local"], 0, 90.0)
    found, _ = summaries(tmp_path, TABLE1)
    assert "unmasked |" not in as_markdown("table1", STUDY, list(found.values()), [])
    change_rows(path, lambda rows: [row | {"unmasked_accuracy_mean": 7} for row in rows])
    record(tmp_path, ROWS["ditto"], 0, 80.0)
    found, _ = summaries(tmp_path, TABLE1)
    text = as_markdown("table1", STUDY, list(found.values()), [])
    assert "| seeds | unmasked | paper |" in text
    assert "| Local SGD | 90.00 | 2.00 | – | 1 | 7.00 (-83.00) | 87.50 |" in text
    assert "| Ditto | 80.00 | 2.00 | – | 1 | – | 87.32 |" in text
    record(tmp_path, ROWS["local"], 1, 80.0)
    found, _ = summaries(tmp_path, TABLE1)
    assert found["local"]["unmasked"] == 7 and found["local"]["unmasked_seeds"] == 1
    text = as_markdown("table1", STUDY, list(found.values()), [])
    assert "| Local SGD | 85.00 | 2.50 | 7.07 | 2 | 7.00 (-83.00, 1 seed) | 87.50 |" in text


def test_damaged_records_are_left_out_by_name(tmp_path: Path) -> None:
    record(tmp_path, ROWS["local"], 0, 90.0)
    empty, short, broken = (record(tmp_path, ROWS["local"], seed, 50.0) for seed in (1, 2, 3))
    (empty / "metrics.jsonl").unlink()
    lines = (short / "metrics.jsonl").read_text().splitlines(keepends=True)
    (short / "metrics.jsonl").write_text(lines[0])
    (broken / "run.json").write_text("{")
    with pytest.warns(DamageWarning, match=f"{broken}/run.json is damaged: Expecting"):
        found, notes = summaries(tmp_path, TABLE1)
    assert found["local"]["seeds"] == [0] and not found["local"]["stopped"]
    assert f"{empty} is left out: damaged, 0 of 100 rounds are recorded" in notes
    assert f"{short} is left out: damaged, 1 of 100 rounds are recorded" in notes
    words = f"{broken} is left out: {broken}/run.json is damaged"
    assert any(note.startswith(words) for note in notes)
    flipped = record(tmp_path, ROWS["local"], 4, 50.0) / "metrics.jsonl"
    flipped.write_text(flipped.read_text().replace("50.0", "99.0"))
    with pytest.warns(DamageWarning) as said:
        found, notes = summaries(tmp_path, TABLE1)
    assert found["local"]["seeds"] == [0]
    assert any(f"{flipped} is damaged: line 2: it does not" in str(w.message) for w in said)
    assert f"{flipped.parent} is left out: damaged, 1 of 100 rounds are recorded" in notes


def test_a_run_without_an_accuracy_is_left_out_by_name(tmp_path: Path) -> None:
    record(tmp_path, ROWS["local"], 0, 90.0)
    broken = record(tmp_path, ROWS["local"], 1, 50.0)
    change_rows(broken, lambda rows: [rows[0], rows[1] | {"accuracy_mean": None}])
    found, notes = summaries(tmp_path, TABLE1)
    assert found["local"]["seeds"] == [0]
    assert notes == [f"{broken} is left out: damaged, round 100 has scores and no accuracy"]


def test_folders_inside_each_other_are_read_once(tmp_path: Path) -> None:
    record(tmp_path / "inner", ROWS["local"], 0, 90.0)
    measured, notes = collect(STUDY, TABLE1, [tmp_path, tmp_path / "inner"])
    assert len(measured) == 1 and not notes


def test_seeds_can_be_chosen_among_the_recorded(tmp_path: Path) -> None:
    for seed in range(3):
        record(tmp_path, ROWS["local"], seed, 90.0)
    for seeds, expected in ((None, [0, 1, 2]), (range(1, 9), [1, 2]), (range(1), [0])):
        (measured,), _ = collect(STUDY, [ROWS["local"]], [tmp_path], seeds)
        assert list(measured.accuracies) == expected


def test_data_options_and_methods_decide_where_a_run_belongs(tmp_path: Path) -> None:
    record(tmp_path, ROWS["local"], 0, 90.0, study=Study(setting="sbm"))
    record(tmp_path, ROWS["scool-sbm"], 0, 90.0, study=Study(clients=10))
    record(tmp_path, choose_rows("ablations", "local-no-augment")[1], 0, 80.0)
    assert summaries(tmp_path, TABLE1)[0] == {}
    assert list(summaries(tmp_path, TABLE1, Study(setting="sbm"))[0]) == ["local"]
    assert list(summaries(tmp_path, TABLE1, Study(clients=10))[0]) == ["scool-sbm"]


def test_fewer_clients_are_not_the_experiment_of_the_paper(tmp_path: Path) -> None:
    few = Study(clients=10)
    record(tmp_path / "few", ROWS["local"], 0, 90.0, study=few)
    record(tmp_path / "all", ROWS["local"], 0, 90.0)
    alone, whole = (summaries(tmp_path, TABLE1, s)[0]["local"] for s in (few, STUDY))
    assert alone["difference"] is None and whole["difference"] == pytest.approx(2.5)
    assert "90.00 (10 clients, the paper 100)" in as_markdown("table1", few, [alone], [])


def test_part_of_the_data_is_not_the_experiment_of_the_paper(tmp_path: Path) -> None:
    path = record(tmp_path, ROWS["local"], 0, 90.0)
    for samples, difference in ((500, pytest.approx(2.5)), (20, None)):
        counts = torch.full((3, 2), samples // 2, dtype=torch.int32)
        tensors = {f"counts/{part}": counts.clone() for part in ("train", "test")}
        tensors |= {"counts/val": counts * 0, "classes": counts > 0}
        words = dict.fromkeys(("client_names", "class_names", "mean", "std"))
        about = {"name": "x", "task": "classification", "input_shape": [3, 32, 32], **words}
        RunWriter.open(path).write("clients.safetensors", "clients", tensors, about)
        row = summaries(tmp_path, TABLE1)[0]["local"]
        assert row["samples"] == samples and row["difference"] == difference
    assert "90.00 (20 samples a client, the paper 500)" in as_markdown("table1", STUDY, [row], [])


def test_a_row_says_what_happens_between_rounds() -> None:
    row = ROWS["scool-drawn-1-epoch"]
    stated = stated_options(STUDY.config(row, 0), row)
    assert (stated["slow_momentum"], stated["model_average"]) == (0.7, 0.98)


def test_a_row_says_what_it_is_about_even_where_that_is_the_default() -> None:
    (row,) = choose_rows("budget", "scool-sbm-10-percent")
    assert stated_options(STUDY.config(row, 0), row)["fraction"] == 0.1


def test_divergence_is_shown(tmp_path: Path) -> None:
    record(tmp_path, ROWS["cga-5-epochs"], 0, 50.0, status="diverged")
    record(tmp_path, ROWS["cga-5-epochs"], 1, 50.0)
    found, _ = summaries(tmp_path, TABLE1)
    row = found["cga-5-epochs"]
    assert row["paper"] == "diverges" and row["stopped"] == "diverged in 1 of 2 seeds"
    assert row["seeds"] == [1] and row["difference"] is None
    assert "| diverges |" in as_markdown("table1", STUDY, [row], [])
    assert "50.00 (diverged in 1 of 2 seeds)" in as_markdown("table1", STUDY, [row], [])


def test_clients_that_stopped_are_shown(tmp_path: Path) -> None:
    for seed, lost in ((0, {"quarantined": {"1": "loss"}}), (1, {"diverged": 2})):
        path = record(tmp_path, ROWS["local"], seed, 50.0)
        change_rows(path, lambda rows, lost=lost: [rows[0], rows[1] | lost])
        row = summaries(tmp_path, TABLE1)[0]["local"]
        assert row["stopped"] == ("1 of 3", "up to 2 of 3")[seed] + " clients stopped"
    assert "50.00 (up to 2 of 3 clients stopped)" in as_markdown("table1", STUDY, [row], [])


def test_a_run_that_diverged_later_counts_until_there(tmp_path: Path) -> None:
    record(tmp_path, ROWS["local"], 0, 50.0, status="diverged")
    row = summaries(tmp_path, TABLE1, Study(rounds=1))[0]["local"]
    assert (row["rounds"], row["accuracy"], row["stopped"]) == (1, 51.0, "")
    row = summaries(tmp_path, TABLE1)[0]["local"]
    assert (row["rounds"], row["stopped"]) == (100, "diverged in 1 of 1 seeds")


def test_four_formats_hold_the_same_numbers(tmp_path: Path) -> None:
    record(tmp_path, ROWS["local"], 0, 90.125)
    record(tmp_path, ROWS["ditto"], 0, 88.0)
    found, _ = summaries(tmp_path, TABLE1)
    rows = list(found.values())
    markdown = as_markdown("table1", STUDY, rows, ["a note"])
    assert "| Local SGD | 90.12 | 2.00 | – | 1 | 87.50 | 7.02 | +2.62 (one seed) |" in markdown
    assert "- a note" in markdown and "participation" not in markdown.split("`ditto`")[0]
    table = list(csv.DictReader(io.StringIO(table_csv(rows))))
    assert float(table[0]["accuracy"]) == 90.125 and table[1]["paper"] == "87.32"
    content = json.loads(as_json("table1", STUDY, rows, []))
    assert content["rows"][0]["difference"] == pytest.approx(2.625)
    assert content["rows"][0]["options"]["lr"] == 0.01
    latex = as_latex("table1", STUDY, rows)
    assert r"Local SGD & 90.12 & 2.00 & -- & 1 & 87.50" in latex and latex.count(r"\\") == 3


def test_the_protocol_is_stated() -> None:
    stated = stated_options(STUDY.config(ROWS["dpsgd-1-step"], 0), ROWS["dpsgd-1-step"])
    assert stated["steps"] == 1 and stated["order"] == "cta" and "epochs" not in stated
    stated = stated_options(STUDY.config(ROWS["fedavg"], 0), ROWS["fedavg"])
    assert stated["participation"] == 0.1 and stated["augment"] is True
    assert (
        stated_options(STUDY.config(ROWS["scool-sbm-released"], 0), ROWS["scool-sbm-released"])[
            "relu_logits"
        ]
        is True
    )


def test_a_page_is_filled_between_its_markers(tmp_path: Path) -> None:
    record(tmp_path / "runs", ROWS["local"], 0, 90.0)
    rows = list(summaries(tmp_path / "runs", TABLE1)[0].values())
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- begin table1 cifar10-noniid -->\n<!-- end table1 cifar10-noniid -->\nafter\n"
    )
    for _ in range(2):  # again: the same page
        fill_page(page, "table1", STUDY, rows, [Path("some/runs")])
        text = page.read_text()
        assert text.startswith("before\n<!-- begin table1 cifar10-noniid from some/runs -->\n\n| ")
        assert text.endswith("<!-- end table1 cifar10-noniid -->\nafter\n") and "90.00" in text
        assert text.count("| Local SGD |") == 1
    with pytest.raises(RunError, match="no place for this table"):
        fill_page(page, "budget", STUDY, rows, [])


# ---------------------------------------------------------------------- figures


def figures(target: str, place: Path) -> dict[str, list[dict[str, Any]]]:
    measured, _ = collect(STUDY, choose_rows(target), [place])
    plots = figures_of(target, measured)
    paths = write_figures(plots, place / "figures", "x")
    assert all(path.stat().st_size > 0 for path in paths)
    assert {p.suffix for p in paths} == {".pdf", ".png", ".csv"}
    return {name: [dict(row) for row in plot.rows] for name, plot in plots.items()}


def test_convergence_over_local_epochs(tmp_path: Path) -> None:
    for seed in (0, 1):
        record(tmp_path, ROWS["local"], seed, 80.0 + seed)
    record(tmp_path, ROWS["dpsgd-1-step"], 0, 70.0)
    rows = figures("convergence", tmp_path)["convergence"]
    ends = {r["row"]: r for r in rows if r["measure"] == "accuracy_mean" and r["round"] > 1}
    assert ends["local"]["local_epochs"] == ends["dpsgd-1-step"]["local_epochs"] == 500
    assert (ends["local"]["low"], ends["local"]["mean"], ends["local"]["high"]) == (80, 80.5, 81)
    assert {r["measure"] for r in rows} == {"accuracy_mean", "train_loss"}
    (fedavg,) = collect(STUDY, (ROWS["fedavg"],), [_one(tmp_path, ROWS["fedavg"])])[0]
    assert local_epochs(fedavg) == 0.5


def test_convergence_averages_the_losses_between_evaluations(tmp_path: Path) -> None:
    path = record(tmp_path, ROWS["local"], 0, 80.0)
    first, last = RunFolder(path).rows()
    between = [{**first, "round": t, "scores": None, "train_loss": float(t)} for t in (10, 20)]
    change_rows(path, lambda _: [first, *between, {**last, "train_loss": 60.0}])
    rows = figures("convergence", tmp_path)["convergence"]
    losses = [(r["round"], r["mean"]) for r in rows if r["measure"] == "train_loss"]
    assert losses == [(1, first["train_loss"]), (100, 30.0)]
    path = record(tmp_path, ROWS["local"], 1, 80.0)  # evaluated in other rounds, too: same windows
    scored = [{**first, "round": t, "train_loss": 9.0} for t in (10, 20)]
    change_rows(path, lambda _: [first, *scored, last])
    rows = figures("convergence", tmp_path)["convergence"]
    losses = [(r["round"], r["mean"]) for r in rows if r["measure"] == "train_loss"]
    assert losses == [(1, first["train_loss"]), (100, (30.0 + (9 + 9 + 1) / 3) / 2)]


def convergence(place: Path, rows: tuple[Row, ...]) -> Any:
    measured, _ = collect(STUDY, rows, [place])
    return figures_of("convergence", measured)["convergence"]


def start_at_nine(path: Path) -> None:
    """A run whose first evaluation is far below the last."""
    change_rows(path, lambda rows: [rows[0] | {"accuracy_mean": 9}, rows[1]])


def test_convergence_of_many_rows_has_axes_for_scool(tmp_path: Path) -> None:
    for number, row in enumerate(TABLE1):
        for seed in (0, 1):
            start_at_nine(record(tmp_path, row, seed, 60.0 + number))
    plot = convergence(tmp_path, TABLE1)
    top, losses, bottom, _ = plot.figure.axes
    names = [[line.get_label() for line in axes.lines] for axes in (top, bottom)]
    assert {"Local SGD", "Ditto"} <= set(names[0]) and {"SCooL-SBM", "True graph"} <= set(names[1])
    (legend,) = plot.figure.legends
    assert [text.get_text() for text in legend.texts] == names[0] + names[1]
    assert len({*names[0], *names[1]}) == len(TABLE1)
    assert not top.collections and losses.get_yscale() == "log"
    half = (len(TABLE1) - 1) / 2
    for axes in (top, bottom):  # the same scale, around the last accuracies
        assert axes.get_ylim()[0] == 60.0 - half and axes.get_ylim()[1] > 59 + len(TABLE1)
    assert min(r["mean"] for r in plot.rows if r["measure"] == "accuracy_mean") == 9.0


def test_convergence_of_few_rows_is_whole_and_has_bands(tmp_path: Path) -> None:
    rows = ROWS["local"], ROWS["scool-sbm"]
    for row in rows:
        for seed in (0, 1):
            start_at_nine(record(tmp_path, row, seed, 80.0 + seed))
    left, right = convergence(tmp_path, rows).figure.axes
    assert left.get_ylim()[0] < 9.0 and left.get_xlim()[0] == 0.0
    assert len(left.collections) == len(right.collections) == 2
    (alone, _) = convergence(tmp_path, rows[1:]).figure.axes  # looks the same by itself
    assert alone.lines[0].get_color() == left.lines[1].get_color() != left.lines[0].get_color()


def test_convergence_without_a_finished_run_is_said(tmp_path: Path) -> None:
    record(tmp_path, ROWS["local"], 0, 80.0, status="diverged")
    with pytest.raises(RunError, match="no finished run is there"):
        convergence(tmp_path, TABLE1)


def _one(place: Path, row: Row) -> Path:
    record(place / "other", row, 0, 50.0)
    return place / "other"


def test_heat_maps_of_the_recorded_rounds(tmp_path: Path) -> None:
    record(tmp_path, ROWS["scool-sbm"], 0, 90.0, graphs=True)
    rows = figures("graphs", tmp_path)["graphs-scool-sbm"]
    assert [(r["round"], r["client"], r["from"], r["weight"]) for r in rows] == [
        (t, c, c, 1.0) for t in (1, 100) for c in range(3)
    ]
    (first,) = tmp_path.glob("scool-sbm-0-*/graphs/000000.safetensors")
    first.unlink()
    record(tmp_path, ROWS["scool-sbm"], 1, 90.0, graphs=True)  # now the one with most graphs
    record(tmp_path, ROWS["scool-sbm"], 2, 90.0)
    measured, _ = collect(STUDY, choose_rows("graphs", "scool-sbm"), [tmp_path])
    (plot,) = figures_of("graphs", measured).values()
    assert {(row["seed"], row["round"]) for row in plot.rows} == {(1, 1), (1, 100)}
    assert plot.figure.get_suptitle() == "SCooL-SBM, seed 1"
    record(tmp_path, ROWS["scool-attention"], 0, 90.0)
    measured, _ = collect(STUDY, choose_rows("graphs", "scool-attention"), [tmp_path])
    with pytest.raises(RunError, match="its records have no graphs/"):
        figures_of("graphs", measured)
    for file in tmp_path.glob("scool-sbm-*/graphs/*"):
        file.write_bytes(b"damaged")
    measured, _ = collect(STUDY, choose_rows("graphs", "scool-sbm"), [tmp_path])
    with (
        pytest.warns(DamageWarning) as said,
        pytest.raises(RunError, match="its records have no graphs/ that can be read"),
    ):
        figures_of("graphs", measured)
    words = [str(warning.message) for warning in said]
    for file in tmp_path.glob("scool-sbm-*/graphs/*"):
        assert any(f"{file} is damaged: it is cut off" in sentence for sentence in words)


def test_graph_error_of_the_first_rounds(tmp_path: Path) -> None:
    for seed in (0, 1):
        record(tmp_path, ROWS["scool-sbm"], seed, 90.0)
    rows = figures("graph-error", tmp_path)["graph-error"]
    found = [(r["method"], r["round"], r["mean"]) for r in rows if r["measure"] == "graph_l1"]
    assert found == [("SCooL-SBM", 1, 0.5)]  # only rounds that have a line; round 100 is late
    for path in tmp_path.glob("scool-sbm-*"):
        some = {"train_loss": 1.0, "bytes": 0, "messages": 0}
        more = [{"round": 1, **some}, {"round": 2, **some}]
        change_rows(path, lambda rows, m=more: sorted([*m, *rows], key=lambda row: row["round"]))
    rows = figures("graph-error", tmp_path)["graph-error"]
    assert [(r["round"], r["mean"]) for r in rows] == [(1, 0.5), (2, 0.9), (3, 0.8)]
    measured, _ = collect(STUDY, choose_rows("graph-error"), [tmp_path])
    plot = figures_of("graph-error", measured)["graph-error"]
    assert plot.figure.axes[0].collections  # the band of the seeds
    assert len(plot.figure.axes) == 1  # no groups are known: no panel for the Rand index
    assert plot.figure.axes[0].get_ylim()[0] == 0.0  # small distances look small


def test_budget_over_the_bytes_of_a_client(tmp_path: Path) -> None:
    for row in choose_rows("budget"):
        record(tmp_path, row, 0, 50.0)
    rows = figures("budget", tmp_path)["budget"]
    assert len(rows) == 16 and {r["percent"] for r in rows} == {2, 5, 8, 10}
    assert {r["method"] for r in rows} == {"scool-sbm", "scool-attention", "scool-drawn", "dpsgd"}
    assert rows[0]["bytes_of_a_client"] == 400 and rows[0]["noise"] is None
    assert rows[0]["bytes_of_a_client_in_the_last_round"] == 200
    for row in choose_rows("budget", "scool-sbm"):  # one line of four has a second seed
        record(tmp_path, row, 1, 52.0)
    rows = figures("budget", tmp_path)["budget"]
    found = {(r["method"], len(r["seeds"]), r["accuracy"], r["noise"] is None) for r in rows}
    one = {(method, 1, 50.0, True) for method in ("scool-attention", "scool-drawn", "dpsgd")}
    assert found == one | {("scool-sbm", 2, 51.0, False)}
    measured, _ = collect(STUDY, choose_rows("budget"), [tmp_path])
    (plot,) = figures_of("budget", measured).values()
    (legend,) = plot.figure.legends
    assert all(isinstance(handle, Line2D) for handle in legend.legend_handles)  # no error bars
    (sent,) = {x for line in plot.figure.axes[1].lines[:1] for x in line.get_xdata()}
    assert sent == pytest.approx(400e-9)  # GB


def test_a_line_of_the_budget_has_the_same_seeds_throughout(tmp_path: Path) -> None:
    """Else it would rise or fall with the luck of the seeds."""
    for row in choose_rows("budget"):
        record(tmp_path, row, 0, 50.0)
    for row in choose_rows("budget", "scool-sbm-10-percent"):
        record(tmp_path, row, 1, 90.0)
    rows = [r for r in figures("budget", tmp_path)["budget"] if r["method"] == "scool-sbm"]
    assert [r["accuracy"] for r in rows] == [50.0] * 4 and all(r["seeds"] == [0] for r in rows)


# ---------------------------------------------------------------------- records of this repository


@pytest.mark.parametrize("setting", ["noniid", "sbm"])
@pytest.mark.parametrize("method", ["scool-sbm", "scool-attention"])
def test_records_of_a_gpu_machine_are_read(tmp_path: Path, setting: Any, method: str) -> None:
    """They were written by a version that had fewer options."""
    (folder,) = restored(tmp_path, "2026-11-15-cifar10-core")
    study = Study(setting=setting)
    found, _ = summaries(folder, TABLE1, study)
    assert list(found) == ["scool-sbm", "scool-attention"]
    header = json.loads((folder / f"{method}-{setting}" / "run.json").read_text())
    assert found[method]["accuracy"] == pytest.approx(header["result"]["accuracy_mean"])
    assert found[method]["seeds"] == [0] and found[method]["verdict"] == "one seed"


def test_ten_percent_in_the_sbm_setting_belongs_to_the_budget(tmp_path: Path) -> None:
    (folder,) = restored(tmp_path, "2026-11-15-cifar10-core")
    found, _ = summaries(folder, choose_rows("budget"), Study(setting="sbm"))
    assert list(found) == ["scool-sbm-10-percent", "scool-attention-10-percent"]
    assert found["scool-sbm-10-percent"]["accuracy"] == pytest.approx(88.4, abs=0.01)


PLACE = r"<!-- begin (\S+) (\S+)-(\w+) from (.+?) -->\n\n(.*?)\n\n<!-- end \1 \2-\3 -->"
PLACES = [
    found
    for page in ("reproduction.md", "ablations.md")
    for found in re.findall(PLACE, (ROOT / "docs" / page).read_text(), re.DOTALL)
]


def test_the_pages_have_tables() -> None:
    pages = [(ROOT / "docs" / page).read_text() for page in ("reproduction.md", "ablations.md")]
    assert len(PLACES) == sum(page.count("<!-- begin ") for page in pages) == 10


_once = cache(find_records)


@pytest.fixture(scope="session")
def benchmarks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The raw runs that the pages are made from, where the commands on the pages expect them."""
    root = tmp_path_factory.mktemp("records")
    folders = {Path(folder) for *_, places, _ in PLACES for folder in places.split()}
    for study in find_studies(BENCHMARKS):
        place = study.relative_to(ROOT)
        if folders & {place, *place.parents}:
            restored(root / "benchmarks", str(study.relative_to(BENCHMARKS)))
    yield root
    shutil.rmtree(root)  # 75 MB


@pytest.fixture
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of this repository are some hundred runs, and do not change meanwhile."""

    def again(folders: list[Path]) -> Any:
        records, notes = _once(tuple(folders))
        return records, list(notes)

    monkeypatch.setattr(reproduced, "find_records", again)


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize(
    ("target", "dataset", "setting", "folders", "text"), PLACES, ids=lambda v: v[:20]
)
def test_the_numbers_of_the_pages_are_those_of_the_records(
    benchmarks: Path, target: str, dataset: str, setting: Any, folders: str, text: str
) -> None:
    """If this fails: the commands are at the end of docs/reproduction.md"""
    study = Study(dataset, setting)
    places = [benchmarks / folder for folder in folders.split()]
    measured, _ = collect(study, choose_rows(target), places)
    shown, _ = without_shortened(measured, study)
    assert text == family_tables([summarise_row(m, study, measured) for m in shown])
