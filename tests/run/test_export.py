"""What is handed on of a run: strangers use it, and nothing of the others is in it."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import scool
from scool.cli.main import dispatch
from scool.errors import ConfigError, ModelError
from scool.run.client_model import ClientModel
from scool.run.onnx import Answers, onnx_programs
from toys import classification, tanh_net

NAMES = ("Bern", "Lyon", "Ulm")  # in the order of a table's clients


def patients() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age, smokes = rng.normal(60, 9, 90), rng.choice(["yes", "no"], 90)
    return pd.DataFrame(
        {
            "site": np.repeat(NAMES, 30),
            "age": age,
            "smokes": smokes,
            "ill": np.where(age + 9 * (smokes == "yes") > 64, "ill", "well"),
            "cost": 1000 + 30 * age,
        }
    )


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> scool.Result:
    federation = scool.from_frame(patients(), "site", "ill", drop=("cost",))
    out = tmp_path_factory.mktemp("runs") / "run"
    method = scool.SCooL(prior=scool.SBM(num_blocks=2), sgd=scool.LocalSGD(lr=0.1))
    return scool.fit(federation, "linear", method, rounds=2, metrics=("auc",), out=out)


@pytest.fixture(scope="module")
def whole(result: scool.Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "all"
    result.export(folder)
    return folder


def test_three_lines_of_the_readme_are_all_that_is_needed(
    result: scool.Result, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (whole / "README.txt").read_text()
    code = re.findall(r"^    (import scool|model.*)$", text, re.MULTILINE)
    assert len(code) == 4
    x = patients().head(7)
    found: dict[str, object] = {"x": x}
    exec("\n".join(code[:2]).replace("FOLDER", str(whole)), found)
    model = found["model"]
    assert isinstance(model, nn.Module)
    for line in code[2:]:
        said = eval(line, found)
        name = line.split("(")[0].removeprefix("model.")
        expected = getattr(result, name)("Bern", x)
        assert said.equals(expected) and len(said) == 7
    assert "a pandas table with the columns age, smokes" in text
    (state,) = re.findall(r'load_file\("(models/\S+)"\)', text)
    assert load_file(whole / state).keys() == dict(result.module.named_parameters()).keys()


def test_what_is_exported_says_what_it_is(result: scool.Result, whole: Path) -> None:
    about = json.loads((whole / "about.json").read_text())
    assert (about["method"], about["rounds"], about["task"]) == ("SCooL-SBM", 2, "classification")
    assert result.graph is not None
    last = result.history[-1]
    for number, client in enumerate(about["clients"]):
        assert client["name"] == NAMES[number]
        assert client["class_names"] == ["ill", "well"]
        assert [c["name"] for c in client["preprocessing"]["columns"]] == ["age", "smokes"]
        assert client["test"]["accuracy"] == last["scores"][number]
        assert client["test"]["auc"] == last["metrics"]["auc"][number]
        weights = {NAMES[j]: float(w) for j, w in enumerate(result.graph[number]) if w}
        assert client["learned_from"] == weights
    with (whole / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [*NAMES]
    assert [float(row["accuracy"]) for row in rows] == result.score.tolist()


def test_one_client_gets_what_is_its_own(result: scool.Result, tmp_path: Path) -> None:
    files = {
        path.relative_to(tmp_path / "ulm").as_posix()
        for path in result.export(tmp_path / "ulm", "Ulm")
    }
    assert files == {"models/client-0002.safetensors", "about.json", "README.txt"}
    model = scool.load_model(tmp_path / "ulm")  # no need to say whose
    x = patients().tail(4)
    assert model.predict(x).equals(result.predict("Ulm", x))
    (one,) = json.loads((tmp_path / "ulm" / "about.json").read_text())["clients"]
    assert (one["name"], one["file"]) == ("Ulm", "models/client-0002.safetensors")
    for words in ("Ulm", "2"):
        place = tmp_path / f"shell-{words}"
        run = str(result.run_dir)
        assert dispatch(["export", run, "--client", words, "--out", str(place)]) == 0
        for name in files:
            assert (place / name).read_bytes() == (tmp_path / "ulm" / name).read_bytes()
    with pytest.raises(ConfigError, match="unknown client 'Lion': did you mean 'Lyon'"):
        result.export(tmp_path / "nobody", "Lion")
    assert not (tmp_path / "nobody").exists()


def test_a_network_of_ones_own_is_asked_for(tmp_path: Path) -> None:
    result = scool.fit(classification(), tanh_net, scool.LocalOnly(), rounds=1)
    result.export(tmp_path / "own")
    text = (tmp_path / "own" / "README.txt").read_text()
    assert 'scool.load_model("FOLDER", 0, module=YourNetwork)' in text
    x = result.federation.test.x[:3]
    model = scool.load_model(tmp_path / "own", 0, module=tanh_net)
    assert torch.equal(model(x), result.outputs(0, x))


def test_onnx_programs_answer_as_the_models_do(result: scool.Result, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    result.export(tmp_path / "ill", onnx=True)
    for client in range(3):
        file = tmp_path / "ill" / "models" / f"client-000{client}.onnx"
        session = runtime.InferenceSession(str(file))
        for count in (1, 5):  # any number of samples
            x = result.federation.test.x[:count]
            (said,) = session.run(None, {"x": x.numpy()})
            expected = result.predict_proba(client, x).numpy()
            np.testing.assert_allclose(said, expected, rtol=1e-5, atol=1e-6)
    assert "onnxruntime.InferenceSession" in (tmp_path / "ill" / "README.txt").read_text()


def test_onnx_programs_of_a_regression_answer_in_its_unit() -> None:
    costs = scool.from_frame(patients(), "site", "cost", drop=("ill",))
    result = scool.fit(costs, "linear", scool.LocalOnly(), rounds=1)
    x = costs.test.x[:5]
    assert torch.allclose(Answers(result.ready(1))(x), result.predict(1, x))


def test_what_onnx_cannot_say_is_named() -> None:
    pytest.importorskip("onnxscript")

    class Odd(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) if input.sum() > 0 else input

    model = ClientModel(Odd(4, 3), None, input_shape=(4,))
    with pytest.raises(ModelError, match=r"cannot be translated to ONNX .* export without it"):
        list(onnx_programs([model]))
