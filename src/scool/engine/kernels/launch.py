"""Launching kernels, and compiling all kernels of a step side by side before the first one runs.

Triton compiles a kernel when it is first launched, about a second each, and a step of the paper's
CIFAR network has ten of them.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import triton


class _Call(NamedTuple):
    kernel: Any
    grid: tuple[int, ...]
    inputs: tuple[Any, ...]
    options: dict[str, Any]


_noted: list[_Call] | None = None  # while a step is only walked through


def launch(kernel: Any, grid: tuple[int, ...], *inputs: Any, **options: Any) -> None:
    """Run a kernel, or only note it while `compile_together` walks through a step."""
    if _noted is not None:
        _noted.append(_Call(kernel, grid, inputs, options))
    else:
        kernel[grid](*inputs, **options)


def compile_together(work: Callable[[], object]) -> None:
    """Walk through `work` without running its kernels, and compile those it would run.

    What it computes meanwhile is rubbish: its results must be thrown away.
    """
    global _noted
    if not hasattr(triton, "AsyncCompileMode"):  # an older Triton: they compile as they come
        return
    _noted = []
    try:
        work()
        calls = _noted
    finally:
        _noted = None
    with ThreadPoolExecutor() as pool, triton.AsyncCompileMode(pool):
        for call in calls:
            call.kernel.warmup(*call.inputs, grid=call.grid, **call.options)
