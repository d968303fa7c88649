"""Records become rows: by configuration, with both spreads, and no difference without its noise."""

import csv
import io
import json
import math
from pathlib import Path

import pytest
import torch
from scipy import stats

from paper_runs import ROWS, STUDY, record, summaries
from records import change_rows
from scool.display.tables import filled_page
from scool.errors import RunError
from scool.recording.seals import DamageWarning
from scool.recording.writer import RunWriter
from scool.reproduction.matching import stated_options
from scool.reproduction.measured import (
    collect,
    noise,
    summarise_row,
    without_shortened,
)
from scool.reproduction.plan import Study, choose_rows
from scool.reproduction.rows import TABLE1
from scool.reproduction.tables import (
    as_json,
    as_latex,
    as_markdown,
    family_tables,
    table_csv,
)


def test_means_and_both_spreads(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((90.0, 91.0, 92.0)):
        record(tmp_path, ROWS["scool-sbm"], seed, accuracy)
    found, notes = summaries(tmp_path, TABLE1)
    assert list(found) == ["scool-sbm"] and notes == []
    row = found["scool-sbm"]
    assert row["accuracy"] == 91.0 and row["best_accuracy"] == 92.0 and row["seeds"] == [0, 1, 2]
    assert row["std_clients"] == 3.0 and row["std_seeds"] == 1.0
    assert row["paper"] == 91.37 and row["difference"] == pytest.approx(-0.37)
    assert row["noise"] == pytest.approx(stats.t.ppf(0.975, 2) * math.sqrt(1 / 3 + 1 / 5))
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
    t = stats.t.ppf(0.975, 19)
    assert noise([0.0, 1.0] * 10) == pytest.approx(t * math.sqrt(0.25 * 20 / 19 / 20))


def test_of_the_authors_statements_the_number_of_seeds_is_not_known(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((91.0, 92.0)):
        record(tmp_path, ROWS["scool-sbm-released"], seed, accuracy)
    row = summaries(tmp_path, TABLE1)[0]["scool-sbm-released"]
    assert row["noise"] == pytest.approx(
        stats.t.ppf(0.975, 1) * math.sqrt(0.5) * math.sqrt(1 / 2 + 1)
    )


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
    assert "90.00 (20 samples per client, the paper 500)" in as_markdown("table1", STUDY, [row], [])


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
        name = "table1 cifar10-noniid"
        page.write_text(filled_page(page, name, family_tables(rows), "some/runs"))
        text = page.read_text()
        assert text.startswith("before\n<!-- begin table1 cifar10-noniid from some/runs -->\n\n| ")
        assert text.endswith("<!-- end table1 cifar10-noniid -->\nafter\n") and "90.00" in text
        assert text.count("| Local SGD |") == 1
    with pytest.raises(RunError, match="no place for this table"):
        filled_page(page, "budget cifar10-noniid", "")
