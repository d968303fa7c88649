"""What a run gives back."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scool.data.federation import Federation
from scool.errors import require
from scool.models import unstack
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
    history: Sequence[Mapping[str, Any]]  # one row a round, as in metrics.jsonl
    graphs: Mapping[int, Tensor]  # the mixing weights of every round, (K, K)
    federation: Federation
    module: nn.Module = field(repr=False)
    run_dir: Path | None = None

    @property
    def accuracy(self) -> Tensor:
        """(K,) test accuracy of each client in percent."""
        return self.score

    @property
    def graph(self) -> Tensor | None:
        """(K, K) the weights of the last round; row i is whom client i learned from."""
        return self.graphs[max(self.graphs)] if self.graphs else None

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

    def model(self, client: int) -> nn.Module:
        """A client's own model, ready for prediction."""
        last = self.federation.num_clients - 1
        require(client in range(last + 1), "client", client, f"give a number from 0 to {last}")
        module = copy.deepcopy(self.module).cpu().eval()
        module.load_state_dict(unstack(self.theta, int(client)), strict=False)
        return module

    @torch.no_grad()
    def predict(self, client: int, x: Tensor | np.ndarray) -> Tensor:
        """Outputs of a client's model for torch or numpy inputs; images are prepared as for
        evaluation."""
        model = self.model(client)
        inputs = x.cpu() if isinstance(x, Tensor) else torch.tensor(np.asarray(x))
        transform = self.federation.transform
        inputs = inputs if transform is None else transform.evaluate(inputs)
        return model(inputs.to(next(iter(self.theta.values())).dtype))

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
            "rounds": self.rounds,
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            "train_loss": last.get("train_loss"),
            "test_loss": last.get("test_loss"),
            "graph_l1": last.get("graph_l1"),
            "graph_ari": last.get("graph_ari"),
            "elbo": last.get("elbo"),
            "bytes_sent": self.bytes_sent,
            "messages": self.messages,
            "quarantined": last.get("quarantined", {}),
            "run_dir": None if self.run_dir is None else str(self.run_dir),
        }


def spread(score: Tensor) -> Tensor:
    """Standard deviation over the clients that have a score; NaN where nobody has."""
    return (score - score.nanmean()).square().nanmean().sqrt()


def finite(value: Tensor | float) -> float | None:
    """A number that JSON can hold: None for NaN and infinities."""
    number = float(value)
    return number if math.isfinite(number) else None
