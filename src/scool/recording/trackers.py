"""Recorders for the trackers people already use: TensorBoard, Weights & Biases, MLflow.

Each is a package of its own that has to be installed. Numbers of every round, the graph as an image
in evaluated rounds, and the graph and models of the end as files.
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
from torch import Tensor

from scool.columns import flatten_options
from scool.errors import ScoolError, need
from scool.types import Info


class Backend(Protocol):
    """What a tracker has to be able to do."""

    def scalars(self, values: Mapping[str, float], step: int) -> None: ...
    def image(self, name: str, pixels: np.ndarray, step: int) -> None: ...
    def files(self, folder: Path) -> None: ...
    def close(self) -> None: ...


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


class Tracker:
    """A recorder that hands a run on to a tracker. Subclasses open theirs."""

    def __init__(self) -> None:
        self._backend: Backend | None = None

    def open(self, header: Mapping[str, Any]) -> Backend:
        raise NotImplementedError

    def start(self, header: Mapping[str, Any], first_round: int) -> None:
        del first_round  # rounds keep their numbers, also in a run that goes on
        try:
            self._backend = self.open(header)
        except ScoolError:
            raise
        except Exception as error:  # of a package that is not ours: a server away, a bad key
            raise ScoolError(
                f"{type(self).__name__} could not be started: {error}. Mend that, or leave its "
                "flag out"
            ) from error

    def round(self, row: Mapping[str, Any], info: Info) -> None:
        assert self._backend is not None
        step = int(row["round"])
        self._backend.scalars(dict(numbers(row)), step)
        graph = info.get("graph")
        if row.get("scores") is not None and isinstance(graph, Tensor):
            self._backend.image("graph", graph_pixels(graph, f"round {step + 1}"), step)

    def end(self, result: Any) -> None:
        assert self._backend is not None
        with tempfile.TemporaryDirectory() as place:
            result.export(Path(place))
            self._backend.files(Path(place))
        self._backend.close()


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
        super().__init__()
        self.folder = Path(folder)
        need("tensorboard", "--tensorboard")  # refused before the run, not after its first round

    def open(self, header: Mapping[str, Any]) -> Backend:
        return _TensorBoard(self.folder, header)


class _TensorBoard:
    def __init__(self, folder: Path, header: Mapping[str, Any]) -> None:
        writer = need("torch.utils.tensorboard", "--tensorboard").SummaryWriter
        self.folder = folder
        self.writer = writer(str(folder))
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
        copy_files(folder, self.folder / "files")

    def close(self) -> None:
        self.writer.close()


def copy_files(source: Path, target: Path) -> None:
    for file in (path for path in source.rglob("*") if path.is_file()):
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.read_bytes())


@final
class WandB(Tracker):
    """A run of Weights & Biases. WANDB_MODE=offline writes to disk alone; `wandb sync` sends it."""

    def __init__(self, folder: str | Path, project: str = "scool") -> None:
        super().__init__()
        self.folder = Path(folder)
        self.project = project
        need("wandb", "--wandb")

    def open(self, header: Mapping[str, Any]) -> Backend:
        return _WandB(self.folder, self.project, header)


class _WandB:
    def __init__(self, folder: Path, project: str, header: Mapping[str, Any]) -> None:
        self.wandb = need("wandb", "--wandb")
        folder.mkdir(parents=True, exist_ok=True)
        self.run = self.wandb.init(
            project=project,
            name=f"{header['method']}-{header['seed']}",
            config=options_of(header),
            dir=str(folder),
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
        super().__init__()
        self.experiment = experiment
        need("mlflow", "--mlflow")

    def open(self, header: Mapping[str, Any]) -> Backend:
        return _MLflow(self.experiment, header)


class _MLflow:
    def __init__(self, experiment: str, header: Mapping[str, Any]) -> None:
        self.mlflow = need("mlflow", "--mlflow")
        self.mlflow.set_experiment(experiment)
        self.run = self.mlflow.start_run(run_name=f"{header['method']}-{header['seed']}")
        self.mlflow.log_params(options_of(header))

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self.mlflow.log_metrics(dict(values), step=step)

    def image(self, name: str, pixels: np.ndarray, step: int) -> None:
        self.mlflow.log_image(pixels, artifact_file=f"{name}/{step:06d}.png")

    def files(self, folder: Path) -> None:
        self.mlflow.log_artifacts(str(folder), artifact_path="result")

    def close(self) -> None:
        self.mlflow.end_run()
