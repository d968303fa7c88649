"""A whole local phase without Python: one step captured as a CUDA graph and replayed.

A step of a hundred small networks is some eighty kernels of a few microseconds; launching them
from Python takes longer than running them. The step number lives on the device, so that a replay
fetches the next batch by itself, and the buffers are kept, so that one capture serves all rounds.
"""

from typing import final

import torch
from torch import Tensor

from scool.engines.samples import Samples
from scool.engines.steps import Gradient, Momentum, Phase, advance, batch_at, mean_loss, start
from scool.learning.local_sgd import LocalSGD
from scool.types import Tree

WARM_UP = 3  # steps run before the capture, as torch asks for


@final
class CapturedSteps:
    """Gives the result of `steps.stepwise`, for phases of one shape and one SGD."""

    def __init__(
        self, gradient: Gradient, samples: Samples, theta: Tree, phase: Phase, sgd: LocalSGD
    ) -> None:
        self.gradient, self.samples, self.sgd = gradient, samples, sgd
        self.at: Momentum = start(theta, sgd, phase.active)
        self.phase = Phase(*(None if part is None else part.clone() for part in phase))  # type: ignore
        self.step = torch.zeros(1, dtype=torch.int64, device=phase.ids.device)
        self.graph = self._capture()

    def fits(self, theta: Tree, phase: Phase, sgd: LocalSGD) -> bool:
        """Whether the capture was made for such a phase."""
        same = all(
            (a is None) == (b is None) and (a is None or b is None or a.shape == b.shape)
            for a, b in zip(self.phase, phase, strict=True)
        )
        return same and sgd == self.sgd and theta.keys() == self.at.theta.keys()

    def run(self, theta: Tree, phase: Phase) -> tuple[Tree, Tensor]:
        """All steps of a phase."""
        for mine, given in zip(self.phase, phase, strict=True):
            if mine is not None and given is not None:
                mine.copy_(given)
        for name, stacked in theta.items():
            self.at.theta[name].copy_(stacked)
        for buffer in (*self.at.velocity.values(), self.at.loss, self.step):
            buffer.zero_()
        for _ in range(phase.active.shape[1]):
            self.graph.replay()
        trained = {name: stacked.clone() for name, stacked in self.at.theta.items()}
        return trained, mean_loss(self.at, phase)

    def _advance(self) -> None:
        active = self.phase.active.index_select(1, self.step)[:, 0]
        batch = batch_at(self.samples, self.phase, self.step)
        advance(self.at, batch, active, self.gradient, self.sgd)
        self.step.add_(1)

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Warm up on a side stream, then record one step. What the steps did is overwritten."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self.step.zero_()
                self._advance()
        torch.cuda.current_stream().wait_stream(side)
        self.step.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._advance()
        return graph
