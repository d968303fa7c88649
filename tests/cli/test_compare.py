"""`scool compare`, its resumption and its notes."""

import json
from pathlib import Path
from typing import Any

import pytest

from commands import SMALL, lines
from records import make_old, write_sealed
from scool.cli.main import dispatch
from scool.errors import ConfigError, RunError

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def test_compare_resumes_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "--methods", "local,scool-sbm", "--rounds", "2", "--out", "c", "--json"]
    words += ["--set", "scool-sbm.num_blocks=2", *SMALL]
    assert dispatch(words) == 0
    before = lines(capsys)
    assert {p.name for p in Path("c").iterdir()} == {
        "compare.json",
        "compare.csv",
        "summary.csv",
        "summary.json",
        "local",
        "scool-sbm",
        "accuracy.png",
        "graphs.png",
    }
    header = json.loads(Path("c/scool-sbm/run.json").read_text())
    assert header["config"]["algorithm"]["prior"]["num_blocks"] == 2
    metrics = Path("c/scool-sbm/metrics.jsonl").read_bytes()
    for file in sorted(Path("c/scool-sbm").rglob("*"), reverse=True):  # as if never started
        file.rmdir() if file.is_dir() else file.unlink()
    assert dispatch(["resume", "c", "--json", "--quiet"]) == 0
    after = lines(capsys)
    assert Path("c/scool-sbm/metrics.jsonl").read_bytes() == metrics
    assert [row["accuracy_mean"] for row in after] == [row["accuracy_mean"] for row in before]
    assert dispatch(["rerun", "c", "--json", "--quiet"]) == 0
    again = lines(capsys)
    assert [row["run_dir"] for row in again] == ["c-rerun-1/local", "c-rerun-1/scool-sbm"]
    assert Path("c-rerun-1/scool-sbm/metrics.jsonl").read_bytes() == metrics
    assert dispatch(["rerun", "c", "--out", "c-rerun-1", "--json", "--quiet"]) == 0
    assert lines(capsys) == again  # as with compare, the same one in that folder goes on
    assert dispatch(["rerun", "c", "--out", "new", "--quiet"]) == 0
    assert "scool-sbm" in capsys.readouterr().out and Path("new/graphs.png").exists()
    assert dispatch(words) == 0  # the same command goes on, too
    with pytest.raises(RunError, match="another comparison"):
        dispatch([*words, "--seed", "5"])
    whole = json.loads(Path("c/compare.json").read_text())
    flaws: list[tuple[Any, str]] = [
        ([], "it holds no JSON object"),
        ({k: v for k, v in whole.items() if k != "methods"}, "it lacks 'methods'"),
        (whole | {"seeds": "x"}, "seeds = 'x' is not a whole number"),
        (whole | {"figures": "no"}, "figures = 'no' is not True or False"),
        (whole | {"sgd": {"lrr": 1}}, "unknown option 'lrr'"),
    ]
    for damaged, flaw in flaws:
        if damaged:
            write_sealed(Path("c/compare.json"), damaged)
        else:
            Path("c/compare.json").write_text(json.dumps(damaged))
        with pytest.raises(RunError, match=f"compare.json is damaged: {flaw}"):
            dispatch(["resume", "c"])
    Path("c/compare.json").write_text(json.dumps(whole | {"seeds": 2}))
    with pytest.raises(RunError, match=r"compare\.json is damaged.* does not match its checksum"):
        dispatch(["resume", "c"])
    Path("c/compare.json").write_text(json.dumps(whole | {"format": "scool-compare-7"}))
    with pytest.raises(RunError, match=r"compare\.json is of another version.* Use that version"):
        dispatch(["resume", "c"])


def test_resume_draws_a_comparison_only_where_it_was_started_with_figures() -> None:
    words = ["compare", "--methods", "local", "--rounds", "1", "--out", "c", *SMALL]
    assert dispatch([*words, "--no-figures"]) == 0
    assert dispatch(["resume", "c", "--quiet"]) == 0
    assert not list(Path("c").glob("*.png"))
    assert dispatch(words) == 0  # the same comparison, whoever wants pictures of it
    drawn = sorted(Path("c").glob("*.png"))
    assert [path.name for path in drawn] == ["accuracy.png", "graphs.png"]
    for path in drawn:
        path.unlink()
    record = json.loads(Path("c/compare.json").read_text())
    assert record.pop("figures") is True  # the last wish
    record["settings"]["average"] = record["settings"].pop("model_average")
    write_sealed(Path("c/compare.json"), record)
    make_old(Path("c"), "compare.json")  # as older versions wrote it
    assert dispatch(["resume", "c", "--quiet"]) == 0
    assert sorted(Path("c").glob("*.png")) == drawn


def test_compare_says_what_a_recipe_keeps(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "--methods", "local,scool-drawn", "--slow-momentum", "0", "--quiet", *SMALL]
    words += ["--rounds", "1", "--no-figures", "--set", "scool-drawn.model_average=0"]
    with pytest.warns(UserWarning, match="has no effect"):
        assert dispatch(words) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note:")]
    assert said == [
        "note: scool-drawn has slow_momentum 0.5 by its recipe; "
        "--set scool-drawn.slow_momentum=0 for none"
    ]


def test_compare_over_seeds_and_from_toml(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.toml").write_text(
        'methods = "local,fedavg"\nrounds = 1\nseeds = 2\n[method.fedavg]\nparticipation = 0.5\n'
    )
    assert dispatch(["compare", "--config", "c.toml", "--out", "c", "--json", *SMALL]) == 0
    rows = lines(capsys)
    assert [row["method"] for row in rows] == ["local", "fedavg"]
    assert rows[0]["seeds"] == [0, 1] and len(rows[0]["run_dirs"]) == 2
    header = json.loads(Path("c/fedavg-1/run.json").read_text())
    assert header["config"]["algorithm"]["participation"] == 0.5
    for text in ("method = 3", "[method]\nfedavg = 3"):
        Path("c.toml").write_text(text)
        with pytest.raises(ConfigError, match=r"method\.NAME"):
            dispatch(["compare", "--config", "c.toml"])
