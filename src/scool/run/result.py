"""What a run gives back."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from scool.columns import LAST
from scool.data.client import Samples, find_client
from scool.data.federation import PARTS, Federation, Part
from scool.errors import require, unknown
from scool.evaluation.advice import advice
from scool.evaluation.metrics import SCORE, Function, Metric, as_metric
from scool.evaluation.paired import Paired, paired_difference
from scool.evaluation.scores import finite, spread
from scool.graph.edges import Matrix, as_matrix
from scool.health import Health
from scool.models import unstack
from scool.run.client_model import BATCH, ClientModel
from scool.run.graph import Graph
from scool.types import Tree


@dataclass(frozen=True)
class Result:
    """K personal models, how good they are, and the graph they learned over."""

    method: str
    seed: int
    rounds: int
    seconds: float
    theta: Tree  # the models, client axis first, on the CPU
    score: Tensor  # (K,) test accuracy in percent, or R^2 for regression
    history: Sequence[Mapping[str, Any]]  # one row per round, as in metrics.jsonl
    graphs: Mapping[int, Matrix]  # the mixing weights of every round; edges of many clients
    federation: Federation
    module: nn.Module = field(repr=False)
    run_dir: Path | None = None
    network: Mapping[str, Any] | None = None  # the model by name and options; None: your own
    run: str | None = None  # the identity in every file of its records

    @property
    def accuracy(self) -> Tensor:
        """(K,) test accuracy of each client in percent; NaN where a client has no test samples.

        Raises:
            ConfigError: this is regression, whose `score` is R^2.
        """
        remedy = "a regression has none; `result.score` is R^2 of each client"
        require(self.federation.task == "classification", "accuracy", "of regression", remedy)
        return self.score

    @property
    def graph(self) -> Graph | None:
        """(K, K) the weights of the last round, for a client that was absent then those of the last
        round in which it took part; row i is whom client i learned from. A tensor with `plot`,
        `to_pandas`, `to_networkx`, `write_graphml` and `write_csv`."""
        if not self.graphs:
            return None
        last, about = max(self.graphs), self.federation
        title = f"{self.method}, round {last + 1}"
        w = self._last_rows(as_matrix(self.graphs[last]))
        return Graph.of(w, title, about.client_names, about.groups, about.held)

    def _last_rows(self, w: Tensor) -> Tensor:
        """The graph of the last round with the earlier rows of those who were absent then."""
        missing: set[int] = set()
        for row in reversed(self.history):
            absent = row.get("absent") or []
            if isinstance(absent, int):  # of many clients only their number is known
                return w
            if row["round"] == max(self.graphs):
                missing = set(absent)
                w = w.clone() if missing else w
            elif found := sorted(missing.difference(absent)) if row["round"] in self.graphs else []:
                w[found] = as_matrix(self.graphs[row["round"]])[found].to(w.dtype)
                missing.difference_update(found)
            if not missing:
                break
        return w

    def advice(self) -> list[str] | None:
        """Of the recommended method: for each client whether cooperating helps, by which kinds and
        with whom, as far as its held-out samples tell; None for other methods."""
        return advice(self.history, self.graph, self.federation.client_names)

    @property
    def elbo(self) -> list[float]:
        """The bound after each E-step; empty for methods without one."""
        return [row["elbo"] for row in self.history if row.get("elbo") is not None]

    @property
    def bytes_sent(self) -> int:
        return sum(row["bytes"] for row in self.history)

    @property
    def messages(self) -> int:
        return sum(row["messages"] for row in self.history)

    @property
    def health(self) -> Health:
        """Who took part to the end, and who is in quarantine for what reason."""
        last = self.history[-1] if self.history else {}
        return Health.read(self.federation.num_clients, last.get("quarantined", {}))

    @property
    def epochs(self) -> float | None:
        """Passes over the training data in all: samples that gradients were taken of, over the
        samples there are. None in records of versions that did not count them."""
        if any("epochs" not in row for row in self.history):
            return None
        return sum(row["epochs"] for row in self.history)

    def model(self, client: int | str) -> nn.Module:
        """A client's own model, by its number or name, ready for prediction."""
        data = self.federation
        number = find_client(client, data.num_clients, data.client_names)
        module = copy.deepcopy(self.module).cpu().eval()
        module.load_state_dict(unstack(self.theta, number), strict=False)
        return module

    def predict(self, client: int | str, x: Any, batch: int = BATCH) -> Any:
        """What a client's model says about torch or numpy inputs: classes among those it may answer
        with, or targets. Images are prepared as for evaluation. For a table of the form that the
        federation was made of: names of classes, or targets, as pandas has them. Computed `batch`
        samples at a time."""
        return self.ready(client).predict(x, batch)

    def predict_proba(self, client: int | str, x: Any, batch: int = BATCH) -> Any:
        """(n, C) how probable each class is; 0 for classes that the client never answers with. For
        a table: a pandas table with the names of the classes."""
        return self.ready(client).predict_proba(x, batch)

    @torch.no_grad()
    def outputs(self, client: int | str, x: Any) -> Tensor:
        """The outputs behind `predict`: logits of all classes, or targets."""
        return self.ready(client)(x)

    def evaluate(self, metric: str | Metric | Function, on: Part = "test") -> Tensor:
        """(K,) float64: what a metric says of each client's model on the client's own samples; NaN
        where it is not defined, or the client has no such samples.

        Args:
            metric: a name such as "auc", or a function (outputs, targets) -> number of your own,
                which sees what the metrics of a run see (`docs/metrics.md`).
            on: "train", "val" or "test".
        """
        if on not in PARTS:
            unknown("part of the data", on, PARTS)
        data, found = self.federation, as_metric(metric)
        found.check_task(data.task)
        is_good = getattr(data, on).is_finite().tolist()
        values: list[float] = []
        for number, good in enumerate(is_good):
            samples: Samples = getattr(data.client(number), on)
            can = good and len(samples.y) > 0
            values.append(
                found(
                    self.ready(number).own_outputs(samples.x).double().cpu(),
                    _exact(data.in_unit(samples.y)),
                )
                if can
                else math.nan
            )
        return torch.tensor(values, dtype=torch.float64)

    def against(self, other: "Result", metric: str | Metric | Function | None = None) -> Paired:
        """What each client gains with this run over another one on the same clients, such as one
        alone: the mean with its interval over clients, the share that is worse off, and who. Over
        several seeds `scool.compare` has it.

        Args:
            metric: to compare by, see `evaluate`; default: the score.

        Raises:
            ConfigError: the other run was judged on other data.
        """
        ours, theirs = self.federation, other.federation
        is_same = ours.client_names == theirs.client_names and all(
            a.shape == b.shape and bool((a == b).all())
            for a, b in ((ours.test.y, theirs.test.y), (ours.test.mask, theirs.test.mask))
        )
        require(is_same, "other", other, "give a run on the same clients and test samples")
        found = as_metric(SCORE[ours.task] if metric is None else metric)
        a, b = (
            run.score if metric is None else run.evaluate(found, "test") for run in (self, other)
        )
        better, names = found.higher_is_better, ours.client_names
        return paired_difference(a, b, higher_is_better=better, names=names)

    def ready(self, client: int | str) -> ClientModel:
        """A client's model with all that is needed for prediction, as `scool.load_model` gives
        it."""
        data, is_class = self.federation, self.federation.task == "classification"
        number = find_client(client, data.num_clients, data.client_names)
        return ClientModel(
            self.model(number),
            data.classes[number].cpu() if is_class else None,
            input_shape=data.input_shape,
            transform=data.transform,
            takes_tokens=data.takes_tokens,
            preprocessing=data.preprocessing.only(number) if data.preprocessing else None,
        ).eval()

    def to_pandas(self, of: Literal["rounds", "clients"] = "rounds") -> Any:
        """A pandas table: one row per round, or one row per client."""
        from scool.run.views import clients_frame, rounds_frame

        if of not in ("rounds", "clients"):
            unknown("table", of, ("rounds", "clients"))
        return rounds_frame(self) if of == "rounds" else clients_frame(self)

    def to_networkx(self) -> Any:
        """The graph of the last round for networkx: an edge i -> j where i learns from j."""
        return None if self.graph is None else self.graph.to_networkx()

    def export(
        self, folder: str | Path, client: int | str | None = None, *, onnx: bool = False
    ) -> list[Path]:
        """Write the models of all clients, or of one of them, for people who know nothing of this
        run: `README.txt` there says how to use them, `about.json` what they are; the graph as
        GraphML and CSV. `scool.load_model(folder, client)` reads a model back. With `onnx` there is
        a program per model that needs neither scool nor torch. Returns the files."""
        from scool.run.export import of_result, write_export

        return write_export(of_result(self), Path(folder), client, onnx=onnx)

    def __repr__(self) -> str:
        """Without models and data."""
        name = "accuracy" if self.federation.task == "classification" else "R^2"
        score = f"{name} {float(self.score.nanmean()):.2f}"
        return f"Result({self.method!r}, {self.federation!r}, {self.rounds} rounds, {score})"

    def _repr_html_(self) -> str:
        from scool.run.views import result_html

        return result_html(self)

    def summary(self) -> dict[str, Any]:
        """The line that `--json` prints."""
        last = self.history[-1] if self.history else {}
        name = "accuracy" if self.federation.task == "classification" else "r2"
        return {
            "method": self.method,
            "dataset": self.federation.name,
            "clients": self.federation.num_clients,
            "accuracy_mean": None,
            "accuracy_std": None,
            f"{name}_mean": finite(self.score.nanmean()),
            f"{name}_std": finite(spread(self.score)),
            **self._metric_means(last),
            "rounds": self.rounds,
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            **{name: last.get(field) for name, field in LAST.items()},
            "bytes_sent": self.bytes_sent,
            "messages": self.messages,
            "epochs": self.epochs,
            "quarantined": last.get("quarantined", {}),
            "run_dir": None if self.run_dir is None else str(self.run_dir),
        }

    @staticmethod
    def _metric_means(last: Mapping[str, Any]) -> dict[str, Any]:
        """Mean and spread of each metric over clients, and for how many it is not defined."""
        names = list(last.get("metrics") or ())
        parts = [f"{name}_{part}" for name in names for part in ("mean", "std", "undefined")]
        return {part: last.get(part) for part in parts} | {"metrics": names}


def _exact(y: Tensor) -> Tensor:
    """Targets as metrics get them."""
    return (y.double() if y.is_floating_point() else y).cpu()
