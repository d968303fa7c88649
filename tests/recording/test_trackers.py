"""What trackers are told. The real ones are tested where they are installed."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scool
from scool.cli.main import dispatch
from scool.errors import ScoolError
from scool.recording.trackers import TensorBoard, Tracker

SMALL = ["--clients", "4", "--groups", "2", "--epochs", "1", "--device", "cpu", "--quiet"]


class Remembering(Tracker):
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.numbers: dict[int, Mapping[str, float]] = {}
        self.images: dict[int, np.ndarray] = {}
        self.names: list[str] = []
        self.is_closed = False

    def open(self, header: Mapping[str, Any]) -> None:
        assert header["seed"] == 0

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self.numbers[step] = values

    def image(self, name: str, pixels: np.ndarray, step: int) -> None:
        assert name == "graph"
        self.images[step] = pixels

    def files(self, folder: Path) -> None:
        self.names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())

    def close(self) -> None:
        self.is_closed = True


def test_a_tracker_gets_numbers_images_and_files() -> None:
    tracker = Remembering()
    federation = scool.digits(num_clients=4, groups=2, seed=0)
    algorithm = scool.SCooL(prior=scool.SBM(num_blocks=2), fraction=0.5)
    result = scool.fit(federation, "mlp", algorithm, rounds=4, eval_every=2, recorders=[tracker])
    told = tracker
    assert list(told.numbers) == [0, 1, 2, 3] and list(told.images) == [1, 3]
    last = result.history[-1]
    assert told.numbers[3]["accuracy_mean"] == last["accuracy_mean"]
    assert told.numbers[3]["traffic/mix"] == last["traffic"]["mix"]
    assert "scores" not in told.numbers[3] and "round" not in told.numbers[3]
    pixels = told.images[3]
    assert pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.std() > 1
    models = [f"models/client-000{client}.safetensors" for client in range(4)]
    texts = ["README.txt", "about.json", "clients.csv"]
    assert told.names == [*texts, "graph.csv", "graph.graphml", "manifest.json", *models]
    assert told.is_closed


def test_a_run_with_a_tracker_is_the_same_run() -> None:
    federation = scool.digits(num_clients=4, groups=2, seed=0)
    plain = scool.fit(federation, "mlp", scool.SCooL(), rounds=2)
    tracked = scool.fit(federation, "mlp", scool.SCooL(), rounds=2, recorders=[Remembering()])
    assert plain.history == tracked.history


def test_a_tracker_that_cannot_start_says_why(tmp_path: Path) -> None:
    class Broken(Remembering):
        def open(self, header: Mapping[str, Any]) -> None:
            raise OSError("the server is away")

    with pytest.raises(ScoolError, match="Broken could not be started: the server is away"):
        scool.fit(scool.digits(num_clients=4), "mlp", scool.LocalOnly(), recorders=[Broken()])


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_named_before_the_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    out = tmp_path / "r"
    with pytest.raises(ScoolError, match=f"--{name} needs {name}, which is not installed"):
        dispatch(["run", "local", "--rounds", "1", "--out", str(out), f"--{name}", *SMALL])
    assert not out.exists()


# ---------------------------------------------------------------------- the real ones


def installed(name: str) -> Any:
    is_there = importlib.util.find_spec(name) is not None
    return pytest.mark.skipif(not is_there, reason=f"{name} is not installed: pip install {name}")


def run_with(flag: str, place: Path, **environment: str) -> Path:
    """`scool run` in a process of its own: these packages warn, and stay in memory."""
    words = ["-m", "scool", "run", "scool-sbm", "--rounds", "3", "--out", "run", flag, *SMALL]
    env = os.environ | environment
    subprocess.run([sys.executable, *words], cwd=place, env=env, check=True, timeout=240)
    return place / "run"


READ_EVENTS = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1]).Reload()
scores = [e.value for e in events.Scalars("accuracy_mean")]
print(json.dumps([scores, len(events.Images("graph"))]))
"""


@installed("tensorboard")
def test_tensorboard(tmp_path: Path) -> None:
    run = run_with("--tensorboard", tmp_path)
    assert isinstance(TensorBoard(run), Tracker)
    words = [sys.executable, "-c", READ_EVENTS, str(run / "tensorboard")]
    found = subprocess.run(words, capture_output=True, text=True, check=True, timeout=240)
    scores, images = json.loads(found.stdout.splitlines()[-1])
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert scores == pytest.approx([row["accuracy_mean"] for row in rows]) and images == 3
    model = scool.load_model(run / "tensorboard" / "files", 1)
    assert model.predict(np.zeros((2, 64), dtype="float32")).shape == (2,)


@installed("wandb")
def test_wandb_offline(tmp_path: Path) -> None:
    run = run_with("--wandb", tmp_path, WANDB_MODE="offline", WANDB_SILENT="true")
    (record,) = run.glob("wandb/offline-run-*/run-*.wandb")
    assert record.stat().st_size > 1000
    assert len(list(run.glob("wandb/offline-run-*/files/media/images/graph_*.png"))) == 3


@installed("mlflow")
def test_mlflow(tmp_path: Path) -> None:
    store = tmp_path / "store"
    run_with(
        "--mlflow",
        tmp_path,
        MLFLOW_TRACKING_URI=store.as_uri(),
        MLFLOW_ALLOW_FILE_STORE="true",
    )
    (metric,) = store.glob("*/*/metrics/accuracy_mean")
    assert [line.split()[2] for line in metric.read_text().splitlines()] == ["0", "1", "2"]
    assert len(list(store.glob("*/*/artifacts/graph/*.png"))) == 3
    assert len(list(store.glob("*/*/artifacts/result/models/*.safetensors"))) == 4
