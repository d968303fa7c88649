"""A table of one's own on the command line: one method, a comparison, a search, and again."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scool.cli.main import dispatch, run_command
from scool.data.catalogue import DataConfig, load
from scool.data.own_table import TableOptions
from scool.display.page.content import page_content
from scool.display.records import find_runs, read_runs
from scool.errors import ConfigError, DataError
from scool.run.options import with_options

pytestmark = [
    pytest.mark.usefixtures("in_an_empty_folder"),
    pytest.mark.filterwarnings("default::scool.errors.Note"),
]
SMALL = "--rounds 1 --model linear --device cpu --quiet --json".split()
OWN = "--data clinics.csv --client site --label ill --missing common".split()


@pytest.fixture(autouse=True)
def clinics(in_an_empty_folder: None) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.normal(50, 9, 80)
    frame = pd.DataFrame({"site": list("abcd") * 20, "age": age, "cost": 100 * age})
    frame["ill"] = np.where(age > 50, "yes", "no")
    frame.loc[3, "cost"] = np.nan
    frame.to_csv("clinics.csv", index=False)
    return frame


def out(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_run_resume_and_rerun(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_command(["run", "scool-sbm", *OWN, *SMALL, "--out", "r", "--metrics", "auc"]) == 0
    (first,) = out(capsys)
    assert (first["dataset"], first["clients"]) == ("clinics", 4)
    record = json.loads(Path("r/run.json").read_text())
    table = record["config"]["settings"]["data"]["table"]
    assert len(table["sha256"]) == 64 and table["label"] == ["ill"] and table["count"] == 4
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert run_command(["rerun", "../r", "--out", "../again", "--quiet", "--json"]) == 0
    assert out(capsys)[0]["accuracy_mean"] == first["accuracy_mean"]
    Path("../clinics.csv").write_text(Path("../clinics.csv").read_text().replace("yes", "maybe"))
    for words in (["resume", "../r"], ["rerun", "../r"]):
        assert run_command([*words, "--quiet"]) == 2
        assert "clinics.csv has changed: its SHA-256 begins" in capsys.readouterr().err
    Path("../clinics.csv").unlink()
    assert run_command(["rerun", "../r", "--quiet"]) == 2
    assert "clinics.csv cannot be read: No such file" in capsys.readouterr().err


def test_compare_and_tune(capsys: pytest.CaptureFixture[str]) -> None:
    methods = ["--methods", "local,fedavg", "--no-figures", "--seeds", "2"]
    assert dispatch(["compare", *OWN, *methods, *SMALL, "--out", "c"]) == 0
    alone, mine = out(capsys)
    assert (alone["method"], mine["method"]) == ("local", "fedavg")
    page = page_content(read_runs(find_runs([Path("c")])), "c").values
    (line,) = [line for line in page["lines"] if line["label"] == "fedavg"]
    gain = line["against"]  # the same clients, by their names, in both seeds
    assert gain["clients"] == 4 and gain["mean"] == pytest.approx(mine["vs_alone"]["mean"])
    assert gain["names_worse"] == mine["vs_alone"]["names_worse"]
    assert not {"graph_l1", "graph_ari"} & {column["name"] for column in page["columns"]}
    assert dispatch(["tune", *OWN, "--methods", "local", "--lr", "0.1,0.2", *SMALL]) == 0
    assert out(capsys)[0]["method"] == "local"


def test_regression_is_noticed_and_a_file_of_options_will_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("o.toml").write_text(
        'data = "clinics.csv"\nclient = "site"\nlabel = ["cost"]\nmissing = "drop"\ndrop=["ill"]'
    )
    assert dispatch(["run", "local", "--config", "o.toml", *SMALL]) == 0
    (line,) = out(capsys)
    assert isinstance(line["r2_mean"], float) and line["accuracy_mean"] is None


def test_notes_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["data", "describe", *OWN]) == 0
    said = capsys.readouterr().out
    assert "train samples       16" in said
    assert dispatch(["run", "local", *OWN, *SMALL, "--test-fraction", "0.5", "--out", "half"]) == 0
    settings = json.loads(Path("half/run.json").read_text())["config"]["settings"]
    config = with_options(DataConfig(), settings["data"], "data")
    assert load(config).test.sizes.tolist() == [10] * 4
    assert "note                1 missing cells in 1 columns are filled by the common" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "clinics.csv", "--label", "ill"], "client is missing: .*it has site, age"),
        (["--data", "clinics.csv", "--client", "site"], "label is missing"),
        (["--data", "no.csv", "--client", "site", "--label", "ill"], "no.csv cannot be read: No"),
        ([*OWN[:4], "--label", "sick"], "label 'sick' is not a column"),
        ([*OWN[:6]], "1 cells are missing, by columns: 'cost' 1; of clients 'd'"),
        ([*OWN, "--dataset", "mnist"], "dataset = 'mnist' .*leave out --data"),
        ([*OWN, "--partition", "iid"], "the table says whose samples are whose"),
        ([*OWN, "--clients", "3"], "clients = 3 .*the table says whose samples"),
        (["--client", "site"], "client = 'site' .*it needs --data FILE"),
        (["--dataset", "own-table"], "give the file: --data FILE"),
    ],
)
def test_refuses(words: list[str], message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        dispatch(["run", "local", *words, *SMALL])


def test_in_python() -> None:
    table = TableOptions(client="site", label=("ill",), missing="drop")
    config = DataConfig(data="clinics.csv", table=table)
    assert config.num_clients == 4 and Path(config.data).is_absolute()
    with pytest.warns(UserWarning, match="1 of 80 rows with missing cells are left out"):
        assert load(config).train.sizes.tolist() == [16, 16, 16, 15]
