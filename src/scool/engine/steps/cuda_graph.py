"""A whole local phase without Python: one step captured as a CUDA graph and replayed.

A step of a hundred small networks is some eighty kernels of a few microseconds; launching them
from Python takes longer than running them. The step number lives on the device, so that a replay
fetches the next batch by itself, and the buffers are kept, so that one capture serves all rounds.
"""

from typing import final

import torch
from torch import Tensor

from scool.engine.machine import HAS_TRITON
from scool.engine.steps.phases import Phase, Samples, Stepper, batch_at
from scool.types import Tree

WARM_UP = 3  # steps run before the capture, as torch asks for


@final
class CapturedSteps:
    """Gives the result of `phases.stepwise`, for phases of one shape and one rule."""

    def __init__(
        self, stepper: Stepper, samples: Samples, theta: Tree, phase: Phase, anchor: Tree | None
    ) -> None:
        self.stepper, self.samples = stepper, samples
        self.buffers = stepper.begin(phase.begin(theta), anchor)
        self.phase = Phase(*(None if part is None else part.clone() for part in phase))  # type: ignore
        self.number = torch.zeros(1, dtype=torch.int64, device=phase.ids.device)
        self.losses = torch.zeros(phase.active.shape, dtype=torch.float64, device=phase.ids.device)
        self.graph = self._capture()

    def run(self, theta: Tree, phase: Phase, anchor: Tree | None) -> tuple[Tree, Tensor]:
        """All steps of a phase. Models of visitors are lent: the next phase overwrites them."""
        for mine, given in zip(self.phase, phase, strict=True):
            if mine is not None and given is not None:
                mine.copy_(given)
        self.stepper.load(self.buffers, theta, anchor, phase.start)
        self.number.zero_()
        for _ in range(phase.active.shape[1]):
            self.graph.replay()
        lend = phase.start is not None
        return self.stepper.end(self.buffers, lend), self.losses.clone()

    def _advance(self) -> None:
        active = self.phase.active.index_select(1, self.number)[:, 0]
        batch = batch_at(self.samples, self.phase, self.number)
        found = self.stepper.step(self.buffers, batch, active)
        self.losses.index_copy_(1, self.number, found.double()[:, None])
        self.number.add_(1)

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Warm up on a side stream, then record one step. What the steps did is overwritten."""
        if HAS_TRITON:
            from scool.engine.kernels.launch import compile_together

            compile_together(self._advance)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self.number.zero_()
                self._advance()
        torch.cuda.current_stream().wait_stream(side)
        self.number.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._advance()
        return graph
