"""Which way of computing serves a module on a device: the engine asks, this file decides."""

from typing import final

import torch
from torch import Tensor, nn
from torch.func import vmap

from scool.engines.cuda_graph import CapturedSteps
from scool.engines.fused import FusedStack, FusedStepper
from scool.engines.memory import tensor_cores
from scool.engines.optimisers import GradientStepper
from scool.engines.samples import Samples
from scool.engines.stacked import Layer, stack_module
from scool.engines.steps import (
    Phase,
    Stepper,
    one_by_one,
    stacked_gradient,
    stepwise,
    vmap_gradient,
)
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import Loss
from scool.models import Functional
from scool.types import Tree


@final
class Formulation:
    """Outputs and local steps of many clients at once.

    | where | module | local steps |
    | --- | --- | --- |
    | anywhere | draws random numbers (dropout) | one client after another |
    | CPU | any | `vmap` of the gradient |
    | CUDA | any | `vmap`, captured as a graph |
    | CUDA | sequence of known layers | stacked layers, captured |
    | CUDA | the same, plain SGD in float32 | update fused into the backward pass, captured |
    """

    def __init__(self, module: nn.Module, loss: Loss, device: torch.device) -> None:
        self.model = Functional(module)
        self.loss = loss
        self.is_cuda = device.type == "cuda"
        self._captured: CapturedSteps | None = None
        stacked = stack_module(module) if self.is_cuda else None
        self._fused = FusedStack.of(module) if self._may_fuse(module) else None
        self._gradient = (
            vmap_gradient(self.model, loss) if stacked is None else stacked_gradient(stacked, loss)
        )
        self.outputs: Layer = vmap(self.model)
        """(models (c, ...), inputs (c, s, ...)) -> (c, s, C), without gradients."""
        if self._fused is not None:
            self.outputs = self._fused.outputs
        elif stacked is not None:
            self.outputs = stacked

    def _may_fuse(self, module: nn.Module) -> bool:
        is_float32 = all(p.dtype == torch.float32 for p in module.parameters())
        return self.is_cuda and is_float32

    def train(
        self, samples: Samples, theta: Tree, phase: Phase, sgd: LocalSGD, streams: list[int]
    ) -> tuple[Tree, Tensor]:
        """The local phase of c clients: their models after it and their mean losses (c,).

        `streams` seeds the random numbers that a model draws, one a client.
        """
        if self.model.has_dropout:
            return one_by_one(self.model, self.loss, samples, theta, phase, sgd, streams)
        if not self.is_cuda:
            return stepwise(self._stepper(sgd, phase), samples, theta, phase)
        with tensor_cores():
            if self._captured is None or not self._captured.fits(phase, sgd):
                self._captured = None  # free its buffers before the next are taken
                stepper = self._stepper(sgd, phase)
                self._captured = CapturedSteps(stepper, samples, theta, phase, sgd)
            return self._captured.run(theta, phase)

    def _stepper(self, sgd: LocalSGD, phase: Phase) -> Stepper:
        is_plain = sgd.optimizer == "sgd" and not sgd.momentum and not sgd.clip_norm
        decays_idle = sgd.weight_decay > 0 and not bool(phase.active.all())
        if self._fused is not None and is_plain and not decays_idle:
            return FusedStepper(self._fused, self.loss, sgd)
        return GradientStepper(self._gradient, sgd)
