"""For which shapes a peer alone gets the bits of a stack of all: `OMP_NUM_THREADS=1 python
benchmarks/2026-11-19-peers/bits.py`. Told is in how many cases a narrower product differs."""

from collections import Counter
from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

CLIENTS = (2, 3, 4, 8, 16, 32, 64, 100)
WIDTHS = (1, 3, 10, 64, 640, 4097, 100_003)
BATCHES = (1, 2, 5, 8, 24, 96)
LAYERS = ((64, 64), (64, 10), (784, 200), (3072, 2), (13, 3), (3, 2), (100, 1), (200, 1), (10, 1))
TYPES = (torch.float32, torch.float64)


def mixes() -> Iterator[tuple[str, bool]]:
    """Row i of K x K times K x D, from a matrix with fewer rows."""
    for dtype, k, d in product(TYPES, CLIENTS, WIDTHS):
        x, w = torch.randn(k, d, dtype=dtype), torch.rand(k, k, dtype=dtype)
        expected = w @ x
        for i in {0, k // 2, k - 1}:
            alone = torch.zeros_like(w)
            alone[i] = w[i]
            yield "mix: K rows, of which K - 1 are 0", torch.equal((alone @ x)[i], expected[i])
            for rows in (m for m in (1, 2, 4) if m <= k):
                few = w.new_zeros(rows, k)
                few[0] = w[i]
                yield f"mix: {rows} rows", torch.equal((few @ x)[0], expected[i])


def layers() -> Iterator[tuple[str, bool]]:
    """Outputs, gradient of the inputs and step of a linear layer, in a stack of fewer clients."""
    for dtype, k, b, (ins, outs) in product(TYPES, CLIENTS, BATCHES, LAYERS):
        x, w = torch.randn(k, b, ins, dtype=dtype), torch.randn(k, outs, ins, dtype=dtype)
        bias, g = torch.randn(k, outs, dtype=dtype), torch.randn(k, b, outs, dtype=dtype)
        whole = _layer(x, w, bias, g)
        for width in (1, 2):
            found = _layer(*(t[:width].clone() for t in (x, w, bias, g)))
            same = all(torch.equal(a, b[:width]) for a, b in zip(found, whole, strict=True))
            kind = "one output" if outs == 1 else "more outputs"
            yield f"linear, {kind}: stack of {width}", same


def _layer(x: Tensor, w: Tensor, bias: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    w = w.clone()
    outputs, inputs = torch.baddbmm(bias[:, None], x, w.transpose(1, 2)), torch.bmm(g, w)
    return outputs, inputs, w.baddbmm_(g.transpose(1, 2), x, beta=0.999, alpha=-0.1)


def main() -> None:
    torch.manual_seed(0)
    count, differ = Counter[str](), Counter[str]()
    for name, is_same in (*mixes(), *layers()):
        count[name] += 1
        differ[name] += not is_same
    print(torch.__version__, torch.backends.cpu.get_cpu_capability())
    for name in count:
        print(f"{name}: {differ[name]} of {count[name]} differ")


if __name__ == "__main__":
    main()
