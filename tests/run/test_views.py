"""Results, graphs and federations in a notebook, and what is handed on to other programs."""

import copy
import csv
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import scool
from records import change_header, drop
from scool.cli.main import dispatch
from scool.data.transform import MNIST
from scool.errors import ConfigError, RunError, ScoolError
from scool.run.graph import Graph
from toys import classification, regression

NASTY = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> scool.Result:
    out = tmp_path_factory.mktemp("r") / "run"
    federation = scool.digits(num_clients=6, groups=2, seed=0)
    algorithm = scool.SCooL(prior=scool.SBM(num_blocks=2), fraction=0.5)
    return scool.fit(federation, "mlp", algorithm, rounds=3, out=out)


def graph_of(result: scool.Result) -> Graph:
    assert result.graph is not None
    return result.graph


def test_import_stays_light() -> None:
    heavy = ("matplotlib", "pandas", "plotly")
    code = f"import sys, scool; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_graph_is_a_tensor_with_tools(result: scool.Result) -> None:
    graph = graph_of(result)
    assert isinstance(graph, torch.Tensor) and torch.equal(graph, result.graphs[2])
    for derived in (graph[0], graph.T, graph + 1, graph.clone(), graph.double()):
        assert type(derived) is torch.Tensor
    figure = graph.plot()
    assert figure._repr_png_().startswith(b"\x89PNG")
    (axes, _) = figure.axes
    assert axes.get_xlabel() == "learns from client" and "round 3" in axes.get_title()
    shown = axes.images[0].get_array()
    order = [int(t.get_text()) for t in axes.get_yticklabels()]
    np.testing.assert_allclose(shown, graph.numpy()[np.ix_(order, order)], rtol=1e-6)
    assert "data:image/png" in graph._repr_html_()


def test_tables(result: scool.Result) -> None:
    frame = graph_of(result).to_pandas()
    np.testing.assert_array_equal(frame.to_numpy(), result.graphs[2].numpy())
    again = copy.deepcopy(graph_of(result))
    assert again.to_pandas().equals(frame) and again.title == graph_of(result).title
    rounds = result.to_pandas()
    assert list(rounds.index) == [0, 1, 2]
    assert rounds["accuracy_mean"].tolist() == [r["accuracy_mean"] for r in result.history]
    clients = result.to_pandas("clients")
    assert clients["accuracy"].tolist() == result.accuracy.tolist()
    assert clients["block"].tolist() == result.history[-1]["blocks"]
    assert (clients.filter(regex=r"^train_\d$").sum(axis=1) == clients["train_samples"]).all()


def test_networkx_and_files(result: scool.Result, tmp_path: Path) -> None:
    graph = graph_of(result)
    net = result.to_networkx()
    assert net.number_of_nodes() == 6
    assert {(i, j): w for i, j, w in net.edges(data="weight")} == {
        (i, j): float(graph[i, j]) for i, j in graph.nonzero().tolist()
    }
    back = nx.read_graphml(graph.write_graphml(tmp_path / "g.graphml"), node_type=int)
    assert dict(back.edges) == dict(net.edges) and back.nodes[1]["group"] == 1
    with graph.write_csv(tmp_path / "g.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = np.zeros((6, 6), dtype=np.float32)
    for row in rows:
        found[int(row["client"]), int(row["from"])] = float(row["weight"])
    np.testing.assert_array_equal(found, graph.numpy())


def test_notebooks_show_a_result_and_a_federation(result: scool.Result) -> None:
    text = result._repr_html_()
    assert f"{float(result.accuracy.mean()):.3f}" in text and "SCooL" in text and "<img" in text
    text = result.federation._repr_html_()
    assert "digits/permuted" in text and "<img" in text and 'alt="How many' in text


def test_text_from_data_is_escaped() -> None:
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    federation = scool.from_arrays(
        [(x, np.arange(8) % 2)] * 2, test_fraction=0.25, name=NASTY, class_names=[NASTY, "$b$"]
    )
    result = scool.fit(federation, "linear", scool.LocalOnly(), rounds=1, method=NASTY)
    for text in (federation._repr_html_(), result._repr_html_()):
        assert NASTY not in text and "&lt;script&gt;" in text


def test_a_regression_is_shown_too() -> None:
    federation = regression()
    result = scool.fit(federation, "linear", scool.LocalOnly(), rounds=1)
    assert "R²" in result._repr_html_() and "r2" in result.to_pandas("clients")
    (axes,) = federation.plot().axes
    assert [bar.get_height() for bar in axes.patches] == [5, 8, 3, 6], "by group"


def test_a_missing_package_is_named(result: scool.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for ask in (result.to_pandas, result.federation.to_pandas, graph_of(result).to_pandas):
        with pytest.raises(ScoolError, match="to_pandas needs pandas, which is not installed"):
            ask()


# ---------------------------------------------------------------------- models


def test_a_loaded_model_predicts_as_the_result_does(result: scool.Result) -> None:
    assert result.run_dir is not None
    test = result.federation.test
    for client in (0, 5):
        x = test.x[test.index[client]]
        model = scool.load_model(result.run_dir, client)
        assert torch.equal(model(x), result.outputs(client, x))
        assert torch.equal(model.predict(x), result.predict(client, x))
        right = (model.predict(x.numpy()) == test.y[client]).double().mean()
        assert 100 * float(right) == pytest.approx(float(result.accuracy[client]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])  # the last in float32
def test_nobody_predicts_from_what_is_not_finite(result: scool.Result, value: float) -> None:
    assert result.run_dir is not None
    model = scool.load_model(result.run_dir, 1)
    x = result.federation.test.x[:9].double().numpy()
    x[[0, 2], 3] = value
    words = r"x has 2 of 9 rows .* as torch.float32 \(rows 0, 2\): fix these samples, or leave"
    for predict in (model.predict, lambda x: result.predict(1, x)):
        for inputs in (x, torch.from_numpy(x)):
            with pytest.raises(ConfigError, match=words):
                predict(inputs)
        assert len(predict(x[3:])) == 6 and len(predict(x[:0])) == 0
    x[:] = value
    with pytest.raises(ConfigError, match=r"x has 9 of 9 rows .* \(rows 0, 1, 2, 3, 4, ...\)"):
        model.predict(x)
    assert not bool(model(x).isfinite().any())  # the outputs are there for who wants them
    for odd in ([["a"] * 64], [[1.0], [1.0, 2.0]]):
        with pytest.raises(ConfigError, match="x is not an array of numbers"):
            model.predict(odd)


def test_a_regression_does_not_predict_from_what_is_not_finite() -> None:
    result = scool.fit(regression(), "linear", scool.LocalOnly(), rounds=1, device="cpu")
    with pytest.raises(ConfigError, match="x has 1 of 3 rows"):
        result.predict(0, np.array([[0.0] * 4, [0, 0, np.nan, 0], [1] * 4]))


def test_exported_models_are_read_back(result: scool.Result, tmp_path: Path) -> None:
    files = result.export(tmp_path / "mine")
    assert [path.name for path in files[:3]] == [
        "graph.graphml",
        "graph.csv",
        "client-0000.safetensors",
    ]
    x = result.federation.test.x[:4]
    for place in (tmp_path / "mine", tmp_path / "mine" / "models", files[5]):
        assert torch.equal(scool.load_model(place, 3)(x), result.outputs(3, x))
    assert load_file(files[5]).keys() == dict(result.module.named_parameters()).keys()
    with pytest.raises(ConfigError, match="client = 9"):
        scool.load_model(tmp_path / "mine" / "models", 9)


def test_the_command_exports_the_same(result: scool.Result, tmp_path: Path) -> None:
    result.export(tmp_path / "python")
    assert dispatch(["export", str(result.run_dir), "--out", str(tmp_path / "shell")]) == 0
    names = [path.relative_to(tmp_path / "python") for path in (tmp_path / "python").rglob("*.*")]
    assert len(names) == 12 and Path("manifest.json") in names
    for name in names:
        mine, theirs = (tmp_path / place / name for place in ("python", "shell"))
        assert mine.read_bytes() == theirs.read_bytes()
    with pytest.raises(RunError, match="exists already"):
        dispatch(["export", str(result.run_dir), "--out", str(tmp_path / "shell")])
    with pytest.raises(RunError, match="is not the folder of a run"):
        dispatch(["export", str(tmp_path)])


def test_a_network_of_ones_own_has_to_be_given(tmp_path: Path) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))

    federation = classification()
    result = scool.fit(federation, build, scool.LocalOnly(), rounds=1, out=tmp_path / "r")
    x = federation.test.x[:3].float()
    with pytest.raises(ConfigError, match="module is missing"):
        scool.load_model(tmp_path / "r", 1)
    for module in (build, build()):
        model = scool.load_model(tmp_path / "r", 1, module=module)
        assert torch.equal(model(x), result.outputs(1, x))
    with pytest.raises(ConfigError, match=r"0\.weight is \(2, 4\) in the module and \(5, 4\)"):
        scool.load_model(tmp_path / "r", 1, module=nn.Sequential(nn.Linear(4, 2)))
    with pytest.raises(ConfigError, match="client = 4 is not possible: give a number from 0 to 3"):
        scool.load_model(tmp_path / "r", 4, module=build)


def test_images_are_prepared_as_in_training(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clients = [
        (rng.integers(0, 255, size=(8, 1, 6, 6), dtype=np.uint8), np.arange(8) % 2)
        for _ in range(2)
    ]
    federation = scool.from_arrays(clients, test_fraction=0.25, transform=MNIST)
    result = scool.fit(federation, "linear", scool.LocalOnly(), rounds=1, out=tmp_path / "r")
    x = federation.test.x[:3]
    assert x.dtype == torch.uint8
    assert torch.equal(scool.load_model(tmp_path / "r", 1)(x), result.outputs(1, x))


def test_a_run_without_a_checkpoint_says_so(result: scool.Result, tmp_path: Path) -> None:
    run = Path(shutil.copytree(str(result.run_dir), tmp_path / "r"))
    (name,) = (file.name for file in run.glob("checkpoint-*"))
    (run / name).rename(tmp_path / name)
    with pytest.raises(RunError, match=f"{name} is missing. No checkpoint is whole"):
        scool.load_model(run, 0)
    drop(run, name)
    with pytest.raises(RunError, match="a finished run whose models were not kept"):
        scool.load_model(run, 0)
    change_header(run, status="running")
    with pytest.raises(RunError, match="no checkpoint yet"):
        scool.load_model(run, 0)


def test_clients_have_their_names_in_files_and_on_axes(tmp_path: Path) -> None:
    names = ("city", "port, old", "hill", "lake")
    graph = Graph.of(torch.eye(4).flip(0), client_names=names)
    lines = graph.write_csv(tmp_path / "graph.csv").read_text().splitlines()
    assert lines[:2] == ["client,from,weight", "city,lake,1.0"]
    assert lines[2] == '"port, old",hill,1.0'
    axes = graph.plot().axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == list(names)


def test_what_clients_gain_over_another_run(result: scool.Result) -> None:
    names = tuple("abcdef")
    named = replace(result, federation=replace(result.federation, client_names=names))
    score = named.score - torch.tensor([3.0, 0.0, -2.0, 1.0, -4.0, 0.0])
    gain = named.against(replace(named, score=score))
    assert gain.mean == pytest.approx(-2 / 6) and gain.over_clients is not None
    assert gain.share_worse == pytest.approx(2 / 6) and gain.names_worse == ["e", "c"]
    start = scool.fit(result.federation, "mlp", scool.LocalOnly(), rounds=1, device="cpu")
    loss = result.against(start, "log_loss")
    fall = start.evaluate("log_loss") - result.evaluate("log_loss")
    assert loss.by_client.tolist() == pytest.approx(fall.tolist())  # what falls is a gain
    with pytest.raises(ConfigError, match="same clients and test samples"):
        result.against(scool.fit(classification(), "linear", scool.LocalOnly(), rounds=1))
