"""Recorders for common trackers: TensorBoard, Weights & Biases, MLflow.

Each needs its own package. They get the numbers of every round, the graph as an image in evaluated
rounds, and the final graph and models as files.
"""

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
from torch import Tensor

from scool.columns import flatten_options
from scool.errors import ScoolError, need
from scool.types import Info


def numbers(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a round by name; those of single clients are left out.

    >>> dict(numbers({"round": 1, "elbo": 2.0, "scores": [1, 2], "traffic": {"mix": 8}}))
    {'elbo': 2.0, 'traffic/mix': 8.0}
    """
    for name, value in row.items():
        if isinstance(value, Mapping) and name != "quarantined":
            yield from numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and name != "round":
            yield f"{prefix}{name}", float(value)


class Tracker(ABC):
    """A recorder that passes a run on to a tracker. Subclasses implement the calls of one
    tracker."""

    @abstractmethod
    def open(self, header: Mapping[str, Any]) -> None:
        """Begin a run there, with its options."""

    @abstractmethod
    def scalars(self, values: Mapping[str, float], step: int) -> None: ...

    @abstractmethod
    def image(self, name: str, pixels: np.ndarray, step: int) -> None: ...

    @abstractmethod
    def files(self, folder: Path) -> None:
        """Copy what is in a folder, which is deleted afterwards."""

    @abstractmethod
    def close(self) -> None: ...

    def start(self, header: Mapping[str, Any], first_round: int) -> None:
        del first_round  # rounds keep their numbers, also in a run that is resumed
        try:
            self.open(header)
        except ScoolError:
            raise
        except Exception as error:  # from foreign code: no server, a bad key
            raise ScoolError(
                f"{type(self).__name__} could not be started: {error}. Fix that, or leave its "
                "flag out"
            ) from error

    def round(self, row: Mapping[str, Any], info: Info) -> None:
        step = int(row["round"])
        self.scalars(dict(numbers(row)), step)
        graph = info.get("graph")
        if row.get("scores") is not None and isinstance(graph, Tensor):
            self.image("graph", graph_pixels(graph, f"round {step + 1}"), step)

    def end(self, result: Any) -> None:
        with tempfile.TemporaryDirectory() as place:
            result.export(Path(place))
            self.files(Path(place))
        self.close()


def graph_pixels(w: Tensor, title: str) -> np.ndarray:
    """(height, width, 3) the heat map of a graph, uint8."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from scool.display.matrices import graph_picture

    picture = graph_picture(w, list(range(len(w))), title, "number")
    picture.set_dpi(150)
    canvas = FigureCanvasAgg(picture)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def options_of(header: Mapping[str, Any]) -> dict[str, str]:
    """The options of a run, from the command line or from Python."""
    config = header.get("config") or (header.get("identity") or {}).get("algorithm") or {}
    options = {name: str(value) for name, value in flatten_options(config).items()}
    return {"method": header["method"], "seed": str(header["seed"]), **options}


@final
class TensorBoard(Tracker):
    """Writes event files; look at them with `tensorboard --logdir FOLDER`."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        need("tensorboard", "--tensorboard")  # refused before the run, not after its first round

    def open(self, header: Mapping[str, Any]) -> None:
        writer = need("torch.utils.tensorboard", "--tensorboard").SummaryWriter
        self.writer = writer(str(self.folder))
        lines = [f"    {name} = {value}" for name, value in options_of(header).items()]
        self.writer.add_text("options", "\n".join(lines), 0)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def image(self, name: str, pixels: np.ndarray, step: int) -> None:
        self.writer.add_image(name, pixels, step, dataformats="HWC")

    def files(self, folder: Path) -> None:
        """TensorBoard holds no files: they lie beside its own, in `files/`."""
        shutil.copytree(folder, self.folder / "files", dirs_exist_ok=True)

    def close(self) -> None:
        self.writer.close()


@final
class WandB(Tracker):
    """A run of Weights & Biases. WANDB_MODE=offline writes to disk alone; `wandb sync` sends it."""

    def __init__(self, folder: str | Path, project: str = "scool") -> None:
        self.folder, self.project = Path(folder), project
        self.wandb = need("wandb", "--wandb")

    def open(self, header: Mapping[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.run = self.wandb.init(
            project=self.project,
            name=f"{header['method']}-{header['seed']}",
            config=options_of(header),
            dir=str(self.folder),
        )

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self.run.log(dict(values), step=step)

    def image(self, name: str, pixels: np.ndarray, step: int) -> None:
        self.run.log({name: self.wandb.Image(pixels)}, step=step)

    def files(self, folder: Path) -> None:
        artifact = self.wandb.Artifact(f"result-{self.run.id}", type="result")
        artifact.add_dir(str(folder))
        self.run.log_artifact(artifact)

    def close(self) -> None:
        self.run.finish()


@final
class MLflow(Tracker):
    """A run of MLflow, where MLFLOW_TRACKING_URI says, else where MLflow itself chooses."""

    def __init__(self, experiment: str = "scool") -> None:
        self.experiment = experiment
        self.mlflow = need("mlflow", "--mlflow")

    def open(self, header: Mapping[str, Any]) -> None:
        self.mlflow.set_experiment(self.experiment)
        self.mlflow.start_run(run_name=f"{header['method']}-{header['seed']}")
        self.mlflow.log_params(options_of(header))

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self.mlflow.log_metrics(dict(values), step=step)

    def image(self, name: str, pixels: np.ndarray, step: int) -> None:
        self.mlflow.log_image(pixels, artifact_file=f"{name}/{step:06d}.png")

    def files(self, folder: Path) -> None:
        self.mlflow.log_artifacts(str(folder), artifact_path="result")

    def close(self) -> None:
        self.mlflow.end_run()
