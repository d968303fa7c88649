"""Copies of the state in host memory, for a thread that writes them while the training goes on."""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor


@final
class HostCopies:
    """Host memory that is used again: fresh memory costs thirty times the copy itself, because the
    system hands it out page by page."""

    def __init__(self) -> None:
        self._free: list[dict[str, Tensor]] = []

    def take(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A copy of these tensors. Nothing changes it before it is given back."""
        fits = (n for n, free in enumerate(self._free) if free.keys() == state.keys())
        number = next(fits, None)  # another thread only appends
        place: dict[str, Tensor] = {} if number is None else self._free.pop(number)
        for name, t in state.items():
            room = place.get(name)
            if room is None or room.shape != t.shape or room.dtype != t.dtype:
                place[name] = _room_for(t)
            place[name].copy_(t.detach(), non_blocking=True)
        for device in {t.device for t in state.values() if t.is_cuda}:
            torch.cuda.synchronize(device)
        return place

    def give_back(self, copy: dict[str, Tensor]) -> None:
        """The copy is written; its memory may hold the next."""
        self._free.append(copy)


def _room_for(t: Tensor) -> Tensor:
    """Memory for a tensor, page-locked where it comes from a GPU and the system allows it."""
    if t.is_cuda:
        try:
            return torch.empty(t.shape, dtype=t.dtype, pin_memory=True)
        except RuntimeError:  # the system has none left
            pass
    return torch.empty(t.shape, dtype=t.dtype)
