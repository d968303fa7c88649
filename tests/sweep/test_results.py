"""What a comparison says of its numbers: spreads over clients and seeds, and paired gains."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from scipy import stats

import scool
from scool.data.federation import Federation
from scool.display.tables import comparison_text
from scool.errors import ConfigError
from scool.run.result import Result
from scool.sweep.results import ComparisonResult
from scool.sweep.runner import Diverged
from toys import classification

ALONE = [[70.0, 80.0, 60.0, 50.0], [72.0, 82.0, 62.0, 52.0]]
MINE = [[75.0, 78.0, 66.0, 50.0], [75.0, 80.0, 70.0, 52.0]]
GAINS = [4.0, -2.0, 7.0, 0.0]  # of each client, mean over the seeds
NAMES = ("Bern", "Ulm", "Lyon", "Graz")


@pytest.fixture(scope="module")
def any_result() -> Result:
    toy = classification(sizes=(4, 3, 5, 6))
    return scool.fit(toy, "linear", scool.LocalOnly(), rounds=1, device="cpu")


def planted(
    any_result: Result, names: tuple[str, ...] | None = NAMES, seeds: tuple[int, ...] = (0, 7)
) -> ComparisonResult:
    """Two methods with these scores, and one that diverged with the last seed."""
    federations = {
        seed: replace(classification(sizes=(4, 3, 5, 6), seed=seed), client_names=names)
        for seed in seeds
    }

    def result(name: str, seed: int, score: list[float], federation: Federation) -> Result:
        tensor = torch.tensor(score, dtype=torch.float64)
        return replace(
            any_result, method=name, seed=seed, score=tensor, federation=federation, run_dir=None
        )

    found: dict[str, dict[int, Result | Diverged]] = {
        name: {
            seed: result(name, seed, scores[row], federations[seed])
            for row, seed in enumerate(seeds)
        }
        for name, scores in {"alone": ALONE, "mine": MINE, "lost": ALONE}.items()
    }
    found["lost"][seeds[-1]] = Diverged("lost", seeds[-1], "all broke", federations[7], None)
    return ComparisonResult(found, alone="alone")


def test_the_gain_over_training_alone_and_both_of_its_spreads(any_result: Result) -> None:
    found = planted(any_result)
    alone, mine, _ = found.summary()
    assert alone["vs_alone"] is None
    gain = mine["vs_alone"]
    assert gain["mean"] == pytest.approx(2.25)
    assert gain["worse"] == 1 and gain["names_worse"] == ["Ulm"] and gain["clients"] == 4
    assert gain["share_worse"] == 0.25
    clients = stats.ttest_1samp(GAINS, 0).confidence_interval(0.95)
    assert gain["over_clients"] == pytest.approx([clients.low, clients.high])
    assert gain["over_seeds"] == pytest.approx([2.25, 2.25])  # as much with either seed
    assert mine["std_over_seeds"] == pytest.approx((69.25 - 67.25) / 2**0.5)
    json.dumps(found.summary(), allow_nan=False)


def test_the_table_names_its_spreads_in_words(any_result: Result) -> None:
    text = repr(planted(any_result))
    row = next(line for line in text.splitlines() if "mine" in line)
    cells = [cell.strip() for cell in row.split("│")]
    assert cells[2].startswith("68.25 ± ") and cells[3] == "1.41"
    assert cells[4] == "+2.25 (-4.16 to +8.66)" and cells[5] == "1 of 4"
    assert "± seeds: standard deviation over seeds of the mean over clients" in text
    assert "vs alone: mean of the paired differences, client by client, with its 95 %" in text
    assert "vs alone, 95 % interval over seeds: mine +2.25 to +2.25" in text
    assert "worse off with mine: Ulm" in text
    lost = next(line for line in text.splitlines() if "lost" in line)
    assert "diverged" in lost


def test_each_seed_may_have_clients_of_its_own(any_result: Result) -> None:
    found = planted(any_result, names=None)
    assert not found.has_same_clients
    gain = found.summary()[1]["vs_alone"]
    assert gain["clients"] == 8 and gain["names_worse"] == ["1 of seed 0", "1 of seed 7"]
    eight = [m - a for s, t in zip(MINE, ALONE, strict=True) for m, a in zip(s, t, strict=True)]
    ends = stats.ttest_1samp(eight, 0).confidence_interval(0.95)
    assert gain["over_clients"] == pytest.approx([ends.low, ends.high])
    assert "worse off with" not in repr(found)  # numbers say nothing to anybody


def test_any_two_methods_can_be_paired(any_result: Result) -> None:
    found = planted(any_result)
    assert found.paired("alone", "mine").mean == pytest.approx(-2.25)
    assert found.paired("lost").compared == 4  # with the seed that it has
    with pytest.raises(ConfigError, match="did you mean 'mine'"):
        found.paired("mien")
    with pytest.raises(ConfigError, match="other = None"):
        replace(found, alone=None).paired("mine")


def test_without_seeds_or_anybody_alone_nothing_is_said_of_them(any_result: Result) -> None:
    results = planted(any_result).results
    one = ComparisonResult({"mine": {0: results["mine"][0]}})
    (row,) = one.summary()
    assert row["std_over_seeds"] is None and row["vs_alone"] is None
    text = comparison_text([row])
    assert "seeds" not in text and "vs " not in text and "worse" not in text


def test_files_of_a_comparison(any_result: Result, tmp_path: Path) -> None:
    replace(planted(any_result), out=tmp_path).write()
    clients = pd.read_csv(tmp_path / "compare.csv")
    assert len(clients) == 3 * 2 * 4
    mine = clients[(clients["method"] == "mine") & (clients["seed"] == 7)]
    assert list(mine["name"]) == list(NAMES) and list(mine["accuracy"]) == MINE[1]
    assert list(mine["vs_alone"]) == [3.0, -2.0, 8.0, 0.0]
    assert list(mine["train_samples"]) == [4, 3, 5, 6]
    lost = clients[(clients["method"] == "lost") & (clients["seed"] == 7)]
    assert lost["accuracy"].isna().all()
    table = pd.read_csv(tmp_path / "summary.csv", index_col="method")
    assert table.loc["mine", "vs_alone_mean"] == pytest.approx(2.25)
    assert table.loc["mine", "share_worse"] == 0.25 and table.loc["mine", "names_worse"] == "Ulm"
    assert table.loc["mine", "worse_off"] == 1 and table.loc["mine", "compared"] == 4
    assert table.loc["mine", "vs_alone_low_over_seeds"] == pytest.approx(2.25)
    rows = json.loads((tmp_path / "summary.json").read_text())["methods"]
    assert [row["method"] for row in rows] == ["alone", "mine", "lost"]
