"""Randomness as a function of (seed, purpose, round, client), never of call order.

Numbers are hashed from counters (the finaliser of SplitMix64), so any subset of clients can be
drawn at once, on any device, in any order, and the bits are the same. Splitting the clients into
chunks, over processes or over machines does not change a result.
"""

import hashlib

import torch
from torch import Tensor

_MASK64 = (1 << 64) - 1


def _signed(value: int) -> int:
    """The two's complement reading of 64 bits, which is what int64 tensors hold."""
    value &= _MASK64
    return value - (1 << 64) if value >> 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def derive(seed: int, *labels: str | int) -> int:
    """A 63-bit seed for one purpose, e.g. `derive(seed, "init")` for the common first model.

    >>> derive(1, "init") == derive(1, "init"), derive(1, "init") == derive(2, "init")
    (True, False)
    """
    text = "/".join([str(seed), *map(str, labels)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def generator(seed: int, *labels: str | int) -> torch.Generator:
    """A CPU generator for one purpose."""
    return torch.Generator().manual_seed(derive(seed, *labels))


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64 (torch's is arithmetic)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def uniform(key: int, clients: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Uniform numbers in [0, 1) for each client: `(n, *shape)` float64 on the clients' device.

    Args:
        key: names the purpose and the round, from `derive(seed, purpose, round)`.
        clients: (n,) ids; row i of the answer depends on `key` and `clients[i]` alone.
        shape: how many numbers each client needs.
    """
    count = 1
    for side in shape:
        count *= side
    counter = torch.arange(count, device=clients.device)
    rows = _mix(clients.long() * _GOLDEN + _signed(key))  # one stream per client
    bits = _mix(rows[:, None] + (counter + 1)[None, :] * _GOLDEN)  # (n, count)
    return (_shift(bits, 11).double() * 2.0**-53).view(len(clients), *shape)


def uniform_of_pairs(key: int, clients: Tensor, columns: Tensor) -> Tensor:
    """(E,) entry `columns[e]` of the row that `uniform` draws for `clients[e]`.

    >>> rows = uniform(7, torch.arange(3), (4,))
    >>> bool(uniform_of_pairs(7, torch.tensor([2]), torch.tensor([1]))[0] == rows[2, 1])
    True
    """
    bits = _mix(_mix(clients.long() * _GOLDEN + _signed(key)) + (columns + 1) * _GOLDEN)
    return _shift(bits, 11).double() * 2.0**-53


def uniform_along(stream: Tensor, key: int, shape: tuple[int, ...]) -> Tensor:
    """Uniform numbers in [0, 1) of one stream, a scalar tensor: float64 of that shape.

    Longer along the first side means more numbers after the same ones. Works under `vmap` over
    streams.
    """
    count = 1
    for side in shape:
        count *= side
    counter = torch.arange(1, count + 1, device=stream.device)
    start = _mix(stream * _GOLDEN + _signed(key))
    bits = _mix(start + counter * _GOLDEN)
    return (_shift(bits, 11).double() * 2.0**-53).view(shape)


def advance(streams: Tensor, step: Tensor) -> Tensor:
    """(n,) streams of a step, from those of a round and the step's number."""
    return _mix(streams + step * _GOLDEN)
