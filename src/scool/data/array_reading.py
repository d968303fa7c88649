"""What one client brings, in any accepted form, as tensors by part."""

from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Number
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from scool.data.federation import Task
from scool.errors import DataError

_KEYS = ("x_train", "y_train", "x_val", "y_val", "x_test", "y_test")
Part = tuple[Tensor, Tensor]  # inputs and targets of one client
Parts = dict[str, Part]


def read_client(client: Any, number: int, task: Task) -> Parts:
    """Any accepted form of one client's data as {part: (x, y)}."""
    parts: dict[str, Any] = {}
    if isinstance(client, Mapping):
        named = {f"{key}_train" if key in ("x", "y") else key: client[key] for key in client}
        for key in named:
            if key not in _KEYS:
                raise DataError(
                    f"client {number} has an entry {key!r}: use x and y, or {', '.join(_KEYS)}"
                )
        for part in ("train", "val", "test"):
            if f"x_{part}" in named or f"y_{part}" in named:
                parts[part] = (named.get(f"x_{part}"), named.get(f"y_{part}"))
    elif isinstance(client, Dataset):
        parts["train"] = client
    elif isinstance(client, (tuple, list)) and len(client) in (2, 4):
        if isinstance(client[0], Dataset):
            parts["train"], parts["test"] = client
        else:
            parts["train"] = tuple(client[:2])
            if len(client) == 4:
                parts["test"] = tuple(client[2:])
    if "train" not in parts:
        raise DataError(
            f"client {number} is a {type(client).__name__}: give (x, y), "
            "(x_train, y_train, x_test, y_test), a mapping with those names, or a torch Dataset"
        )
    return {part: _pair(value, number, part, task) for part, value in parts.items()}


def _pair(value: Any, number: int, part: str, task: Task) -> Part:
    where = f"client {number} {part}"
    if isinstance(value, Dataset):
        pairs = list(_items(value))
        x, y = (
            _stacked([_tensor(pair[side], where, what) for pair in pairs], where, what)
            for side, what in enumerate(_sides(task))
        )
    elif value[0] is None or value[1] is None:
        raise DataError(f"{where} data lacks {'x' if value[0] is None else 'y'}: give both")
    else:
        x, y = (_tensor(side, where, what) for side, what in zip(value, _sides(task), strict=True))
    if x.dim() == 0 or y.dim() == 0 or len(x) != len(y):
        raise DataError(
            f"{where} data has shapes {tuple(x.shape)} and {tuple(y.shape)}: "
            "give one target per sample"
        )
    if part == "train" and len(x) == 0:
        raise DataError(f"client {number} has no training sample: give it data or leave it out")
    return (x[:, None] if x.dim() == 1 else x), _targets(y, where, task)


def with_inputs(client: Parts, number: int, tokens: bool) -> Parts:
    """Inputs in the type that models take: floats, images as they are, or whole numbers."""
    for part, (x, y) in client.items():
        if tokens and (x.is_floating_point() or x.dtype == torch.bool):
            raise DataError(
                f"client {number} {part} inputs are {x.dtype}: tokens are whole numbers; give "
                "those, or leave tokens=True out"
            )
        client[part] = (x.long() if tokens else x if x.dtype == torch.uint8 else x.float()), y
    return client


def _sides(task: Task) -> tuple[str, str]:
    """The two sides of a sample, as messages call them."""
    return "inputs", "labels" if task == "classification" else "targets"


def _tensor(value: Any, where: str, what: str) -> Tensor:
    """A CPU copy, so that the caller cannot change it."""
    if isinstance(value, Tensor):
        return _plain(value.detach().cpu().clone(), where, what)
    try:
        array = np.array(value)
    except ValueError as error:
        raise DataError(f"{where} {what} {_ragged(value) or error}") from error
    if array.dtype == object and array.ndim == 0:
        raise DataError(
            f"{where} {what} are a {type(value).__name__}: give an array of numbers, such as "
            "x.toarray() of a sparse matrix"
        )
    if array.dtype == object and (words := _ragged(array)):
        raise DataError(f"{where} {what} {words}")
    try:
        return _plain(torch.from_numpy(_as_numbers(array)), where, what)
    except TypeError as error:
        odds = (v for v in array.flat if not isinstance(v, Number) or isinstance(v, complex))
        odd = next(odds, None)
        remedy = "encode labels as 0..C-1" if what == "labels" else "give an array of numbers"
        raise DataError(
            f"{where} {what} are of type {array.dtype}, such as {odd!s:.40}: {remedy}, or use "
            "scool.from_frame, which takes texts and empty cells"
        ) from error


def _plain(values: Tensor, where: str, what: str) -> Tensor:
    if values.is_complex():
        raise DataError(
            f"{where} {what} are complex numbers ({values.dtype}): give real ones, such as real "
            "and imaginary part side by side"
        )
    if values.layout != torch.strided:
        raise DataError(f"{where} {what} are sparse: give x.to_dense()")
    return values


def _as_numbers(array: np.ndarray) -> np.ndarray:
    """Numbers that torch knows; also from an array of objects, as a table with mixed columns
    has."""
    if array.dtype == np.longdouble:
        return array.astype(np.float64)
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    if array.dtype != object or not all(isinstance(v, Number) for v in array.flat):
        return array
    is_whole = all(isinstance(v, Integral) for v in array.flat)
    return array.astype(np.int64 if is_whole else np.float64)


def _ragged(value: Any) -> str:
    """A complaint if samples have different lengths, else empty."""
    lengths = sorted({len(row) for row in value if isinstance(row, Sequence | np.ndarray | Tensor)})
    if len(lengths) < 2:
        return ""
    remedy = "pad or cut them to one"
    return f"have samples of different lengths, such as {lengths[0]} and {lengths[-1]}: {remedy}"


def _stacked(samples: list[Tensor], where: str, what: str) -> Tensor:
    shapes = sorted({tuple(sample.shape) for sample in samples})
    if len(shapes) > 1:
        raise DataError(
            f"{where} {what} have shapes {shapes[0]} and {shapes[1]}: all samples need the same"
        )
    return torch.stack(samples) if samples else torch.empty(0)


def _items(dataset: Any) -> Iterator[tuple[Any, Any]]:
    for row in range(len(dataset)):
        yield dataset[row]


def _targets(y: Tensor, where: str, task: Task) -> Tensor:
    if task == "regression":
        return (y[:, None] if y.dim() == 1 else y).float()
    if y.is_floating_point() and y.dim() == 1 and bool((y == y.round()).all()) and len(y):
        raise DataError(
            f"{where} labels are whole numbers stored as {y.dtype}: convert them, y.astype(int), "
            "or say task='regression' if they are quantities"
        )
    if y.is_floating_point() or y.dim() != 1:
        raise DataError(
            f"{where} labels are {y.dtype} of shape {tuple(y.shape)}: give whole numbers of shape "
            "(n,), or task='regression'"
        )
    return y.long()


def check_shapes(read: list[Parts]) -> None:
    first_x, first_y = read[0]["train"]
    for number, client in enumerate(read):
        for part, (x, y) in client.items():
            if x.shape[1:] != first_x.shape[1:] or y.shape[1:] != first_y.shape[1:]:
                raise DataError(
                    f"client {number} {part} samples have shape {tuple(x.shape[1:])} and targets "
                    f"{tuple(y.shape[1:])}, client 0 has {tuple(first_x.shape[1:])} and "
                    f"{tuple(first_y.shape[1:])}: all clients need the same"
                )
