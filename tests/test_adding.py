"""What has to be touched to add a method, a metric or a dataset: one list each."""

import ast
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from scool import algorithms, columns
from scool.algorithms import METHODS
from scool.cli import ls as ls_module
from scool.cli.main import dispatch
from scool.columns import COLUMNS, Column
from scool.data import catalogue
from scool.data.catalogue import DATASETS, DataConfig, Dataset
from scool.data.labelled import Labelled
from scool.display import series
from scool.display.page.content import page_content
from scool.display.records import find_runs, read_run
from scool.display.tables import comparison_table
from scool.evaluation.metrics import METRICS, Metric

SOURCE = Path(algorithms.__file__).parents[1]
LIST = "algorithms/__init__.py"
MADE_OF_OTHERS = {"algorithms/tracks.py"}  # a method that trains several others side by side
SPECIAL = {
    "SCooL",  # the recipes also set options of its prior
    "LocalOnly",  # the default of the command line
    "Truth",  # data have one, too
}


@cache
def words_of(path: Path) -> frozenset[str]:
    """The names and texts of a program, without docstrings and comments."""
    return frozenset(_words(ast.parse(path.read_text())))


def _words(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def files_with(*words: str) -> set[str]:
    """The files of the library that name something, those about the paper's table left out."""
    return {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if "reproduc" not in str(path.relative_to(SOURCE)) and words_of(path) & set(words)
    }


@pytest.mark.parametrize("name", sorted(set(algorithms.__all__) - SPECIAL))
def test_a_method_is_named_in_its_file_and_in_one_list(name: str) -> None:
    kind = getattr(algorithms, name)
    own = str(Path(*kind.__module__.split(".")[1:]).with_suffix(".py"))
    assert files_with(name) - (MADE_OF_OTHERS - {own}) == {own, LIST}
    keys = {key for key, (_, method) in METHODS.items() if type(method) is kind}
    assert keys
    assert files_with(*keys - {"scool"}) <= {own, LIST}  # that is also the name of the package


def test_every_method_of_the_list_is_public() -> None:
    import scool

    assert set(algorithms.__all__) <= set(scool.__all__)
    assert {type(method).__name__ for _, method in METHODS.values()} == set(algorithms.__all__)


def test_a_metric_is_named_where_it_is_measured_and_in_one_list() -> None:
    measured = {"evaluation/scores.py"}
    assert files_with("graph_ari") == {"columns.py"} | measured
    assert files_with("graph_l1") - {"run/views.py"} == {"columns.py"} | measured


def test_a_new_metric_is_shown_by_all_who_show_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`edges` is recorded by some methods and has no column yet."""
    folder = tmp_path / "run"
    small = "--clients 4 --rounds 1 --model linear --device cpu --quiet --json".split()
    assert dispatch(["run", "scool-sbm", "--out", str(folder), *small]) == 0
    capsys.readouterr()
    more = (*COLUMNS, Column("edges", "edges kept", "0"))
    monkeypatch.setattr(columns, "COLUMNS", more)
    monkeypatch.setattr(series, "COLUMNS", more)
    (record,) = [read_run(path) for path in find_runs([folder])]
    edges = record.rows[-1]["edges"]
    assert ls_module.key_figures(record, tmp_path)["edges"] == edges
    assert dispatch(["ls", str(folder)]) == 0
    assert "edges kept" in capsys.readouterr().out
    comparison_table([record.header["result"] | {"edges": edges}])
    assert "edges kept" in capsys.readouterr().out
    values, _ = page_content([record], "words")
    assert "edges kept" in {column["words"] for column in values["columns"]}
    assert values["lines"][0]["figures"]["edges"] == edges
    assert dispatch(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0


def test_a_metric_of_models_is_one_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = Metric("spread", lambda outputs, targets: float(outputs.std()), "spread of outputs")
    monkeypatch.setitem(METRICS, "spread", entry)
    small = "--clients 4 --rounds 1 --model linear --device cpu --metrics spread".split()
    folder = tmp_path / "run"
    assert dispatch(["run", "local", "--out", str(folder), *small, "--quiet"]) == 0
    assert "spread of" in capsys.readouterr().out
    runs = ["--methods", "local,fedavg", "--out", str(tmp_path / "all"), "--json", "--quiet"]
    assert dispatch(["compare", *runs, *small]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["spread_mean"] > 0 for line in lines] == [True, True]
    (record,) = [read_run(path) for path in find_runs([folder])]
    values, _ = page_content([record], "words")
    assert values["columns"][0]["words"] == values["metrics"][0]["words"] == "spread of outputs"
    figure = values["lines"][0]["figures"]["spread_mean"]
    assert figure == pytest.approx(record.rows[-1]["spread_mean"], abs=1e-5)
    assert len(values["runs"][0]["metrics"]["spread_mean"]) == 4


@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"digits", "synthetic"}))
def test_a_dataset_is_named_among_the_data_alone(name: str) -> None:
    files = files_with(name)
    assert files and all(file.startswith("data/") for file in files)


def test_a_dataset_that_is_not_of_images_is_one_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(root: Path, *, verify: bool = True) -> Labelled:
        del root, verify
        rng = torch.Generator().manual_seed(0)
        y = torch.arange(4).repeat(40)
        x = torch.randn(160, 6, generator=rng) + y[:, None]
        return Labelled(x[:120], y[:120], x[120:], y[120:])

    monkeypatch.setitem(DATASETS, "measurements", Dataset("rows of numbers", 4, read=read))
    assert catalogue.load(DataConfig("measurements", clients=4)).num_clients == 4
    words = "--dataset measurements --clients 4 --rounds 1 --device cpu --quiet --json".split()
    assert dispatch(["run", "fedavg", "--out", str(tmp_path / "r"), *words]) == 0
    assert json.loads(capsys.readouterr().out)["dataset"] == "measurements/noniid"
