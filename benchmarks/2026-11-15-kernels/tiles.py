"""Times the tiles of the convolution kernels on a GPU, at the sizes of the paper's networks.

    PYTHONPATH=src python benchmarks/2026-11-15-kernels/tiles.py OUT.jsonl [--tables FIRST,FORWARD]

For each table of `triton_layers` and each layer: the present tile, the best ones, and what they
take in microseconds for 100 clients of 10 images. All tiles go to OUT. They are compiled by several
processes first, which share Triton's cache.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from scool.engine.kernels import layers as kernels
from scool.engine.kernels import norm as triton_norm

CLIENTS, BATCH = 100, 10
PROCESSES = max(1, (os.cpu_count() or 2) - 2)


class Layer(NamedTuple):
    name: str
    side: int
    channels: int
    outputs: int
    kernel: int
    pooled: bool
    has_input_gradient: bool
    shares: tuple[int, ...]

    @property
    def run(self) -> int:
        return self.kernel * self.channels

    @property
    def out(self) -> int:
        return self.side - self.kernel + 1

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "H": self.side,
            "W": self.side,
            "CI": self.channels,
            "NO": self.outputs,
            "KH": self.kernel,
        }


LAYERS = (
    Layer("conv1", 32, 3, 32, 5, True, False, (2000, 4000, 8000)),
    Layer("conv2", 14, 32, 64, 5, True, True, (2000,)),
    Layer("84", 84, 3, 32, 3, False, False, (2000, 4000)),
    Layer("41", 41, 32, 32, 3, False, True, (2000, 4000)),
)


class Job(NamedTuple):
    table: tuple[str, int]  # its name and the place in it
    layer: str
    tile: dict[str, int]
    kernel: Any
    grid: tuple[int, ...]
    inputs: Callable[[], tuple[Any, ...]]
    options: dict[str, Any]


@cache
def some(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape, device="cuda", dtype=dtype)


def _suits(numbers: int, warps: int, most: int) -> bool:
    """Accumulators of a thread: neither idle nor spilled."""
    return 8 <= numbers // (warps * 32) <= most


def updates(layer: Layer) -> Iterator[Job]:
    side, out, width = layer.side, layer.out, kernels._power(layer.outputs)
    table = "UPDATE", kernels._is_wide(layer.run) * (1 if layer.outputs <= 32 else 2)
    filters = (CLIENTS, layer.kernel, layer.kernel, layer.channels, layer.outputs)
    for bp, bk, warps, stages, share in itertools.product(
        (32, 64), (16, 32, 64, 128), (1, 2, 4), (1, 2, 3), layer.shares
    ):
        if bk > kernels._power(layer.kernel * layer.run) or not _suits(bk * width, warps, 128):
            continue
        positions = BATCH * out * out
        shares = max(1, round(positions / share))
        rows = kernels._rows_at_once(BATCH, out, out, shares, bp)
        part = triton.cdiv(BATCH * out if rows else positions, shares)

        def inputs(shares: int = shares) -> tuple[Any, ...]:
            lead = () if shares == 1 else (shares,)
            x = some(CLIENTS, BATCH, side, side, layer.channels)
            g = some(CLIENTS, BATCH, out, out, layer.outputs)
            step = some(*lead, *filters), some(*lead, CLIENTS, layer.outputs)
            return x, g, *step, BATCH, CLIENTS, 0.0, 1.0

        tile = {"share": share, "BP": bp, "BK": bk, "warps": warps, "stages": stages}
        sizes = {
            "OH": out,
            "OW": out,
            "P": positions,
            "RUN": layer.run,
            "SHARE": part,
            "ROWS": rows,
        }
        blocks = {"BP": bp, "BK": bk, "BO": width, "num_warps": warps, "num_stages": stages}
        options = {"UPDATE": shares == 1, **layer.sizes, **sizes, **blocks}
        grid = (triton.cdiv(layer.kernel * layer.run, bk), CLIENTS, shares)
        kernel = kernels._conv_weight_gradient
        yield Job(table, layer.name, tile, kernel, grid, inputs, options)


def input_gradients(layer: Layer) -> Iterator[Job]:
    side, out, width = layer.side, layer.out, kernels._power(layer.channels)
    table, positions = ("INPUT", int(layer.outputs > 32)), BATCH * side * side

    def inputs() -> tuple[Any, ...]:
        g = some(CLIENTS, BATCH, out, out, layer.outputs)
        w = some(CLIENTS, layer.kernel, layer.kernel, layer.channels, layer.outputs)
        return g, w, some(CLIENTS, BATCH, side, side, layer.channels), BATCH, positions

    for bq, warps, stages in itertools.product((32, 64, 128, 256), (1, 2, 4, 8), (2, 3, 4)):
        if not _suits(bq * width, warps, 128):
            continue
        blocks = {"BQ": bq, "BC": width, "BO": kernels._power(layer.outputs)}
        options = {"OH": out, "OW": out, "KW": layer.kernel, **layer.sizes, **blocks}
        options |= {"num_warps": warps, "num_stages": stages}
        tile = {"BQ": bq, "warps": warps, "stages": stages}
        grid = (triton.cdiv(positions, bq), CLIENTS)
        kernel = kernels._conv_input_gradient
        yield Job(table, layer.name, tile, kernel, grid, inputs, options)


def forwards(layer: Layer) -> Iterator[Job]:
    side, width = layer.side, kernels._power(layer.outputs)
    out = layer.out // 2 if layer.pooled else layer.out
    positions = BATCH * out * out

    def inputs() -> tuple[Any, ...]:
        x = some(CLIENTS, BATCH, side, side, layer.channels)
        w = some(CLIENTS, layer.kernel, layer.kernel, layer.channels, layer.outputs)
        bias, to = some(CLIENTS, layer.outputs), (CLIENTS, BATCH, out, out, layer.outputs)
        second = some(*to, dtype=torch.uint8)
        if not layer.pooled:  # the sums of as many blocks as there can be
            second = some(CLIENTS, BATCH, out * out // 16 + 1, 2, layer.outputs)
        return x, w, bias, some(*to), second, BATCH, positions

    table = "POOLED" if layer.pooled else "FORWARD", kernels._is_wide(layer.run)
    names = ("PH", "PW") if layer.pooled else ("OH", "OW")
    kernel = kernels._conv_pool_forward if layer.pooled else kernels._conv_forward
    for bp, bk, warps, stages in itertools.product(
        (16, 32, 64, 128), (16, 32, 64), (1, 2, 4, 8), (1, 2, 3) if layer.run < 17 else (2, 3, 4)
    ):
        most = 64 if layer.pooled else 128
        longest = layer.run if layer.pooled else layer.kernel * layer.run
        if bk > kernels._power(longest) or not _suits(bp * width, warps, most):
            continue
        options = dict.fromkeys(names, out) | {"RUN": layer.run, **layer.sizes, "BO": width}
        options |= {"BP": bp, "BK": bk, "num_warps": warps, "num_stages": stages}
        tile = {"BP": bp, "BK": bk, "warps": warps, "stages": stages}
        blocks = triton.cdiv(positions, bp)
        if not layer.pooled:  # a norm comes next
            options["SUMS"], blocks = True, BATCH * triton.cdiv(out * out, bp)
        yield Job(table, layer.name, tile, kernel, (blocks, CLIENTS), inputs, options)


def first_updates() -> Iterator[Job]:
    """The gradient through the first group norm of `cnn4` into the weights before it."""
    sizes = {"XH": 84, "XW": 84, "CI": 3, "KH": 3, "RUN": 9, "H": 82, "W": 82, "PH": 41, "PW": 41}
    sizes |= {"G": 4, "CH": 32, "BK": 32}
    large, small = (CLIENTS, BATCH, 82, 82, 32), (CLIENTS, BATCH, 41, 41, 32)
    of_sample = (CLIENTS, BATCH, 32)
    for parts, bp, warps, stages in itertools.product((2, 4, 8), (16, 32), (1, 2, 4), (1, 2, 3)):
        share = triton.cdiv(41 * 41, parts * bp) * bp

        def inputs(shares: int = BATCH * triton.cdiv(41 * 41, share)) -> tuple[Any, ...]:
            which = some(*small, dtype=torch.uint8)
            norm = (*[some(*of_sample)] * 2, some(CLIENTS, 32), *[some(*of_sample)] * 2)
            to = some(shares, CLIENTS, 3, 3, 3, 32), some(shares, CLIENTS, 32)
            x = some(CLIENTS, BATCH, 84, 84, 3)
            return x, some(*small), which, some(*large), *norm, *to, BATCH, CLIENTS

        tile = {"parts": parts, "BP": bp, "warps": warps, "stages": stages}
        options = {"UPDATE": True, "SHARE": share, "BLOCK": bp, **sizes}
        options |= {"num_warps": warps, "num_stages": stages}
        grid = (CLIENTS * BATCH, triton.cdiv(41 * 41, share))
        kernel = triton_norm._window_gradient
        yield Job(("FIRST", 0), "84", tile, kernel, grid, inputs, options)


def jobs(tables: str) -> list[Job]:
    found: list[Job] = [*first_updates()]
    for layer in LAYERS:
        found += [*forwards(layer), *updates(layer)]
        found += input_gradients(layer) if layer.has_input_gradient else []
    return [job for job in found if not tables or job.table[0] in tables.split(",")]


def compile_some(chosen: list[Job], number: int) -> None:
    for job in chosen[number::PROCESSES]:
        try:
            job.kernel.warmup(*job.inputs(), grid=job.grid, **job.options)
        except triton.runtime.errors.OutOfResources:
            continue


def microseconds(job: Job) -> float | None:
    """The best of three times four launches; None where the tile does not fit."""
    inputs = job.inputs()
    try:
        job.kernel[job.grid](*inputs, **job.options)
    except triton.runtime.errors.OutOfResources:
        return None
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times: list[float] = []
    for _ in range(3):
        begin.record()
        for _ in range(4):
            job.kernel[job.grid](*inputs, **job.options)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 4 * 1e3)
    return min(times)


def main(chosen: list[Job], out: Path) -> None:
    command = [sys.executable, *sys.argv, "--part"]
    workers = [subprocess.Popen([*command, str(n)]) for n in range(PROCESSES)]
    for worker in workers:
        worker.wait()
    found: dict[tuple[tuple[str, int], str], list[tuple[float, dict[str, int]]]] = defaultdict(list)
    with out.open("w") as lines:
        for job in chosen:
            if time := microseconds(job):
                found[job.table, job.layer].append((time, job.tile))
                table, place = job.table
                row = {"table": table, "place": place, "layer": job.layer, **job.tile}
                lines.write(json.dumps({**row, "us": round(time, 1)}) + "\n")
    for ((table, place), layer), times in found.items():
        present = triton_norm.FIRST if table == "FIRST" else getattr(kernels, table)[place]
        now = [time for time, tile in times if tile == present]
        print(f"{table}[{place}], {layer}: now {present} {now and round(now[0], 1)}")
        for time, tile in sorted(times, key=lambda entry: entry[0])[:4]:
            print(f"  {time:8.1f} us {tile}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--tables", default="", help="names of tables; default: all")
    parser.add_argument("--part", type=int, help="only compile the tiles of one process")
    given = parser.parse_args()
    if given.part is None:
        main(jobs(given.tables), given.out)
    else:
        compile_some(jobs(given.tables), given.part)
