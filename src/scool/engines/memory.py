"""How much at once: bounds on memory, and threads that fit the work."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod

import torch
from torch import nn

from scool.data.federation import Federation

_CPU_BUDGET = 2 << 30  # bytes of temporaries we allow ourselves without asking


def _budget(device: torch.device) -> int:
    """Bytes that temporaries may take: half of what a GPU has free, a fixed share on a CPU."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    return _CPU_BUDGET


def clients_at_once(module: nn.Module, federation: Federation, device: torch.device) -> int:
    """How many clients to train side by side.

    A client in training takes about four copies of its parameters (model, gradient, update,
    result) and its activations, guessed as 1,000 times a sample's inputs for a small batch.
    """
    parameters = sum(p.numel() * p.element_size() for p in module.parameters())
    activations = 1000 * 4 * prod(federation.input_shape)
    return max(1, min(federation.num_clients, _budget(device) // (4 * parameters + activations)))


def samples_at_once(input_shape: Sequence[int], device: torch.device) -> int:
    """How many samples to push through models in one evaluation call.

    Activations of the convolutional networks here are about 15 times their inputs.
    """
    return max(1, min(1 << 18, _budget(device) // (32 * 4 * max(64, prod(input_shape)))))


@contextmanager
def fitting_threads(module: nn.Module, num_clients: int) -> Iterator[None]:
    """One CPU thread while the stack of models is small.

    Below some two million parameters in all, handing a step to a second thread costs more than it
    saves, and on a busy machine the waiting for it costs many times more.
    """
    before = torch.get_num_threads()
    if num_clients * sum(p.numel() for p in module.parameters()) < 2_000_000:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Let float32 products on a GPU use TF32: ten bits of mantissa, several times the speed."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
