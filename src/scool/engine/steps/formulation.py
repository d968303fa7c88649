"""Which formulation of the computations suits a module on a device: the engine asks, this file
decides."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor, nn
from torch._C import _functorch as functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.func import vmap

from scool.engine.machine import HAS_TRITON, tensor_cores
from scool.engine.steps.cpu_images import by_chunks, by_workers, group_module, suits_workers
from scool.engine.steps.cuda_graph import CapturedSteps
from scool.engine.steps.fused import FusedStack, FusedStepper, takes_whole_layers
from scool.engine.steps.local_steps import (
    Gradient,
    Gradients,
    GradientStepper,
    one_by_one,
    stacked_gradient,
    vmap_gradient,
)
from scool.engine.steps.phases import Batch, Phase, Samples, Stepper, batch_at, stepwise
from scool.engine.steps.stacked import Layer, stack_module
from scool.errors import ConfigError, unknown
from scool.learning.local_sgd import Rule
from scool.learning.losses import Loss
from scool.models import Functional, unstack
from scool.models.trial import check_outputs, check_rows, warn_probabilities
from scool.types import Tree

Precision = Literal["float32", "bf16"]


def _check_precision(precision: str, device: torch.device) -> bool:
    """Whether local training rounds its products to bf16.

    Raises:
        ConfigError: the device has no bf16, or the precision is unknown.
    """
    if precision not in get_args(Precision):
        unknown("precision", precision, get_args(Precision))
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(False):
        name = torch.cuda.get_device_name(device)
        raise ConfigError(
            f"precision = 'bf16' is not possible: {name} has no bf16 units. Use --precision float32"
        )
    return precision == "bf16"


@final
class Formulation:
    """Outputs and local steps of many clients at once.

    | where | module | local steps |
    | --- | --- | --- |
    | anywhere | `vmap` refuses it, or it draws numbers by itself (RReLU) | one after another |
    | CPU | any | `vmap` of the gradient |
    | CPU | large convolutional network | a client at a time in each of several threads |
    | CPU | small sequence of image layers | grouped convolutions, some clients at a time |
    | CPU | sequence of linear layers, plain SGD | update fused into the backward pass |
    | CUDA | any | `vmap`, captured as a graph |
    | CUDA | sequence of known layers | stacked layers, captured |
    | CUDA | the same, plain SGD in float32 | update fused into the backward pass, captured |

    What `vmap` takes is found out before its first use, on one client and two samples.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        device: torch.device,
        precision: Precision = "float32",
    ) -> None:
        self.model = Functional(module)
        self.loss = loss
        self.device = device
        self.is_bf16 = _check_precision(precision, device)
        self.is_cuda = device.type == "cuda"
        self._captured: dict[Any, CapturedSteps] = {}  # by rule and shapes, the newest last
        self._tried: set[str] = set()  # "outputs", "steps", "gradient"
        fused = FusedStack.of(module)
        stacked = stack_module(module) if fused is None or self.is_cuda else None
        self.may_draw = fused is None and stacked is None  # random numbers; known layers do not
        self._fused = fused if fused is not None and self._may_fuse(module, fused) else None
        stacked = stacked if self.is_cuda else None
        self._is_stacked = stacked is not None
        is_convolutional = any(isinstance(m, nn.modules.conv._ConvNd) for m in module.modules())
        on_images = is_convolutional and not self.is_cuda
        self._has_workers = on_images and suits_workers(module)
        self._is_chunked = False
        if on_images and not self._has_workers and (grouped := group_module(module)):
            stacked, self._is_chunked = grouped, True
        self._stacked = stacked
        self._outputs: Layer = vmap(self.model)
        if self._fused is not None:
            self._outputs = self._fused.outputs
        elif self._is_stacked and stacked is not None:
            self._outputs = stacked
        elif self._has_workers:
            self._outputs = self._each

    @cached_property
    def _gradient(self) -> Gradient:
        """Made on first use: fused steps do without."""
        if self._stacked is None:
            return vmap_gradient(self.model, self.loss)
        return stacked_gradient(self._stacked, self.loss)

    @property
    def activations(self) -> int:
        """The memory of a sample in an evaluation, in sizes of its input, for convolutions of some
        thirty channels: fewer where layers are fused, fewest where no layer before a pool is
        written out."""
        if not self.is_cuda:
            return 32
        return 5 if self._fused is not None and self._fused.is_pooled else 16

    def _each(self, theta: Tree, x: Tensor) -> Tensor:
        """Large convolutions on a CPU: as grouped convolutions they are several times slower."""
        models = range(len(x))
        return torch.stack([self.model.alone(unstack(theta, i), x[i]) for i in models])

    def outputs(self, theta: Tree, x: Tensor) -> Tensor:
        """(models (c, ...), inputs (c, s, ...)) -> (c, s, C), without gradients."""
        self._try_outputs(theta, x[0])
        return self._outputs(theta, x)

    def shared_outputs(self, theta: Tree, x: Tensor) -> Tensor:
        """(c, s, C): all models on the same inputs (s, ...)."""
        self._try_outputs(theta, x)
        if self._fused is not None:
            models = len(next(iter(theta.values())))
            return self._fused.outputs(theta, x.expand(models, *x.shape))
        if self._has_workers:
            models = len(next(iter(theta.values())))
            return self._each(theta, x.expand(models, *x.shape))
        return vmap(self.model, in_dims=(0, None))(theta, x)

    def _may_fuse(self, module: nn.Module, fused: FusedStack) -> bool:
        """Linear layers anywhere; convolutions need the kernels: CUDA, float32 and Triton."""
        is_float32 = all(p.dtype == torch.float32 for p in module.parameters())
        has_kernels = self.is_cuda and is_float32 and HAS_TRITON
        return has_kernels or not fused.convolutions

    def _try_outputs(self, theta: Tree, x: Tensor) -> None:
        """Before the first evaluation: whether `vmap` takes the model without gradients."""
        if "outputs" in self._tried:
            return
        with torch.no_grad(), _unseen(x.device):
            check_outputs(self.model, unstack(theta, 0), x[:2], range(1, sys.maxsize))
            if not self._is_stacked:
                vmap(self.model)({name: t[:1] for name, t in theta.items()}, x[None, :2])
        self._tried.add("outputs")

    def _try_training(self, samples: Samples, theta: Tree, phase: Phase, is_fused: bool) -> None:
        """Before the first step: whether the model fits the data, and whether `vmap` takes it where
        the steps go through it. A fused step does not; the trial would only make it wait for the
        compiler that torch then loads, about a second."""
        is_sure = is_fused or self._is_stacked or self._is_chunked
        wanted = {"steps"} if is_sure else {"steps", "gradient"}
        if wanted <= self._tried:
            return
        y = samples.split.y
        if y.is_floating_point():
            columns = range(y.shape[-1], y.shape[-1] + 1)
        else:
            columns = range(int(y.max()) + 1, sys.maxsize)
        step = torch.zeros(1, dtype=torch.int64, device=phase.ids.device)
        with _unseen(step.device):
            x, y, weight, stream = batch_at(samples, phase.of(0), step)
            batch = Batch(x[:, :2], y[:, :2], weight[:, :2], stream)
            first = unstack(theta, 0)
            check_outputs(self.model, first, batch.x[0], columns)
            check_rows(self.model, first, batch.x[0])
            if not y.is_floating_point():
                warn_probabilities(self.model, first, batch.x[0])
            if not is_sure and not self.model.draws_by_itself:
                try:
                    self._gradient({name: t[:1] for name, t in theta.items()}, batch)
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError as error:  # in the gradient: the model tries its outputs
                    self.model.fall_back(error)
        self._tried |= wanted

    def train(
        self,
        samples: Samples,
        theta: Tree,
        phase: Phase,
        rule: Rule,
        anchor: Tree | None,
    ) -> tuple[Tree, Tensor]:
        """The local phase of c clients: their models after it and the losses of their steps (c, S).
        `anchor` belongs to the rule's pull or push. `theta` has c rows, or those that `phase.start`
        names; then the next phase may overwrite the result.
        """
        stepper = self._stepper(rule, phase, anchor, theta, samples.class_weights is None)
        rounds = self.is_bf16 and not isinstance(stepper, FusedStepper)  # which does it by itself
        with (
            self.model.training(),
            torch.autocast(self.device.type, torch.bfloat16, rounds, cache_enabled=False),
        ):
            self._try_training(samples, theta, phase, isinstance(stepper, FusedStepper))
            loops = self.model.draws_by_itself or self.model.loops
            if self.is_cuda and not loops:
                with tensor_cores():
                    steps = self._capture(stepper, samples, theta, phase, rule, anchor)
                    return steps.run(theta, phase, anchor)
            theta = phase.begin(theta)
            if loops:
                return one_by_one(self.model, self.loss, samples, theta, phase, rule, anchor)
            if self._has_workers:
                module = self.model.module
                return by_workers(module, self.loss, samples, theta, phase, rule, anchor)
            if self._is_chunked:
                return by_chunks(stepper, samples, theta, phase, anchor)
            return stepwise(stepper, samples, theta, phase, anchor)

    def _capture(
        self,
        stepper: Stepper,
        samples: Samples,
        theta: Tree,
        phase: Phase,
        rule: Rule,
        anchor: Tree | None,
    ) -> CapturedSteps:
        """The capture for such a phase, cached. Two are kept, for methods
        that train two models per round."""
        shapes = tuple(None if part is None else part.shape for part in phase)
        key = (rule, type(stepper), shapes)
        if key not in self._captured:
            while len(self._captured) > 1:  # free its buffers before the next are taken
                self._captured.pop(next(iter(self._captured)))
            self._captured[key] = CapturedSteps(stepper, samples, theta, phase, anchor)
        return self._captured[key]

    def forget(self) -> None:
        """Free the memory of the captured steps."""
        self._captured.clear()

    def _stepper(
        self, rule: Rule, phase: Phase, anchor: Tree | None, theta: Tree, are_alike: bool
    ) -> Stepper:
        sgd = rule.sgd
        is_plain = sgd.optimizer == "sgd" and not sgd.momentum and not sgd.clip_norm
        is_plain &= takes_whole_layers(rule.only, theta)
        is_plain &= takes_whole_layers(frozenset(anchor) if anchor else None, theta)
        moves_idle = rule.moves_alone and not bool(phase.active.all())
        is_plain &= self.is_cuda or not self.is_bf16
        if self._fused is not None and is_plain and not moves_idle:
            return FusedStepper(self._fused, self.loss, rule, self.is_bf16, are_alike)
        return GradientStepper(self._gradient, rule)

    def gradient(self, theta: Tree, batch: Batch) -> Gradients:
        """The gradients of one batch, the module in evaluation mode."""
        return self._gradient(theta, batch)


@contextmanager
def _unseen(device: torch.device) -> Iterator[None]:
    """A trial without side effects on the global random numbers, in which `vmap` may not loop over
    single operations: that would take longer than a loop over the clients."""
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        functorch._set_vmap_fallback_enabled(before)
