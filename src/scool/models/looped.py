"""Modules that `vmap` refuses: run one client after another, with a warning that says why."""

import linecache
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class LoopWarning(UserWarning):
    """A model is computed one client after another: correct but slow."""


class Looped(torch.autograd.Function):
    """A module as one operation, which `vmap` applies to one client after another."""

    @staticmethod
    def forward(call: Callable[..., Tensor], x: Tensor, *values: Tensor) -> Tensor:
        return call(x, *values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.call, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *_Gradient.apply(ctx.call, grads[0], *ctx.saved_tensors)  # type: ignore

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Tensor, int]:
        rows = _each_client(Looped, info.batch_size, in_dims, inputs)
        return torch.stack(rows), 0


class _Gradient(torch.autograd.Function):
    """The gradient of `Looped` in the parameters; computes the outputs once more."""

    @staticmethod
    def forward(
        call: Callable[..., Tensor], g: Tensor, x: Tensor, *values: Tensor
    ) -> tuple[Tensor, ...]:
        leaves = [value.detach().requires_grad_() for value in values]
        with torch.enable_grad():
            outputs = call(x, *leaves)
        grads = torch.autograd.grad(outputs, leaves, g, allow_unused=True, materialize_grads=True)
        return tuple(grad.to_dense() for grad in grads)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass  # nobody asks for second derivatives

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        rows = _each_client(_Gradient, info.batch_size, in_dims, inputs)
        stacked = tuple(torch.stack(parts) for parts in zip(*rows, strict=True))
        return stacked, (0,) * len(stacked)


def _each_client(operation: Any, clients: int, in_dims: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """The operation on each client's slice. What the module draws is the same for all."""
    rows: list[Any] = []
    device = inputs[1].device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for client in range(clients):
            torch.manual_seed(0)
            mine = (
                value if dim is None else value.select(dim, client)
                for value, dim in zip(inputs, in_dims, strict=True)
            )
            rows.append(operation.apply(*mine))
    return rows


_REMEDIES = {
    "data-dependent": "choose by torch.where instead of a branch on values",
    ".item()": "compute with the tensor instead of .item()",
    "random operation": "take the random numbers out of forward",
    "dynamic shape": "choose by torch.where instead of a mask or an index of unknown length",
    "broadcast shape": "add out of place (y = y + x), or start from a tensor made of x",
    "doesn't have storage": "stay with torch operations: no numpy and no tolist",
    "vmap fallback": "replace the operation by others that torch.func.vmap knows",
    "Batching rule": "replace the operation by others that torch.func.vmap knows",
}
"""What to do about an error of `vmap`, by words of its message."""


def why(module: nn.Module, error: Exception) -> str:
    """Names the layer, the line and the operation that `vmap` refused, and the remedy."""
    names = {id(layer): name for name, layer in module.named_modules()}
    where, line = "the gradient of the model", ""
    for frame, number in traceback.walk_tb(error.__traceback__):  # the innermost layer of all
        layer = frame.f_locals.get("self")
        if id(layer) in names:
            kind, line = type(layer).__name__, ""
            where = f"layer {names[id(layer)]!r} ({kind})" if layer is not module else f"{kind}"
        if id(layer) in names or line:
            own = linecache.getline(frame.f_code.co_filename, number).strip()
            line = line if frame.f_globals.get("__name__", "").startswith("torch") else own
    where = f"{where}, in `{line}`," if line else where
    text = str(error)
    reason = text.splitlines()[0].split(". ")[0] if text else type(error).__name__
    known = (remedy for words, remedy in _REMEDIES.items() if words in text)
    remedy = next(known, "see the limitations of torch.func.vmap")
    return (
        f"{where} cannot be computed for all clients at once ({reason}). The clients go through "
        f"the model one after another: the same result, in more time. To train them side by "
        f"side, {remedy}"
    )
