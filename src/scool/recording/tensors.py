"""Sealed files of tensors: safetensors with their kind, the run they belong to, and checksums.

Their metadata has one entry, `scool`, a JSON object: the format, the run, whatever the kind of file
needs, the SHA-256 of every tensor (type, shape and bytes), and a seal over all of these. So single
tensors can be read and verified without the rest.
"""

import hashlib
import json
import os
import struct
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from scool.graph.edges import SMALL, Edges
from scool.recording.disk import MIB, open_plain, write_bytes
from scool.recording.seals import (
    OBJECT,
    SEAL,
    TEXT,
    check_format,
    check_kinds,
    check_seal,
    or_null,
    with_seal,
)

VERSION = 2
LARGEST_HEADER = 64 * MIB
THREADS = 4  # threads that compute checksums of a large tensor
PIECE = 16 * MIB  # bytes of a tensor for one thread
LISTS = ("/i", "/j", "/values", "/fill")
PARTS = ("", *LISTS)  # suffixes of the name of a graph
_TYPES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class TensorFile(NamedTuple):
    """What a file of tensors holds."""

    about: dict[str, Any]
    tensors: dict[str, Tensor]
    seal: str | None
    """None in files of versions that sealed nothing."""


def write_tensors(
    path: Path,
    kind: str,
    tensors: Mapping[str, Tensor],
    run: str | None,
    about: Mapping[str, Any] | None = None,
    durable: bool = True,
) -> str:
    """Write a sealed file; equal tensors give equal bytes. Its seal.

    The bytes go to the disk as they lie in memory: a copy of a large state would keep the
    interpreter, and so the training beside it, waiting.
    """
    host = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    names = sorted(host, key=lambda name: (-host[name].element_size(), name))  # keeps them aligned
    sums = {name: _sum_of(host[name]) for name in sorted(names)}
    sealed = with_seal(
        {"format": f"scool-{kind}-{VERSION}", "run": run, **(about or {}), "tensors": sums}
    )
    header: dict[str, Any] = {"__metadata__": {"scool": json.dumps(sealed)}}
    end = 0
    for name in names:
        start, end = end, end + host[name].numel() * host[name].element_size()
        shape, place = list(host[name].shape), [start, end]
        header[name] = {"dtype": _TYPES[host[name].dtype], "shape": shape, "data_offsets": place}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    content = (_bytes_of(host[name]) for name in names)
    write_bytes(path, struct.pack("<Q", len(text)), text, *content, durable=durable)
    return sealed[SEAL]


def read_tensors(
    path: Path, kind: str, run: str | None = None, names: Collection[str] | None = None
) -> TensorFile:
    """Read and verify a file of tensors.

    Args:
        kind: what it has to be.
        run: the run it has to belong to; None: any, and files of older versions, which have no
            seal, are read, too.
        names: which tensors to read of those in the file; None: all.

    Raises:
        ValueError: it is not what was written there; says why in words that follow "NAME is
            damaged: ".
        OSError: it cannot be opened.
    """
    try:
        with open_plain(path) as file:
            _check_header(file.read(8), os.fstat(file.fileno()).st_size)
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("scool", "{}"))
            if not isinstance(about, dict):
                raise ValueError("its description is not a JSON object")
            keys = set(file.keys())
            wanted = sorted(keys if names is None else keys & set(names))
            # Cloned, because the file's tensors are not aligned as fresh ones are, and the last
            # bit of a sum can depend on that.
            tensors = {name: file.get_tensor(name).clone() for name in wanted}
    except (SafetensorError, RecursionError, MemoryError, RuntimeError) as error:
        raise ValueError(str(error) or type(error).__name__) from error
    if about.get("format") in (None, f"scool-{kind}-1") and SEAL not in about:
        if run is not None:
            raise ValueError("it has no checksum: it is not of this run")
        return TensorFile(about, tensors, None)
    check_format(about.get("format"), f"scool-{kind}-{VERSION}")
    check_kinds(about, {"run": or_null(TEXT), "tensors": OBJECT})
    check_kinds(about["tensors"], dict.fromkeys(about["tensors"], TEXT))
    check_seal(about)
    if run is not None and about.get("run") != run:
        raise ValueError("it belongs to another run")
    sums = about["tensors"]
    if set(sums) != keys:
        raise ValueError("it has other tensors than its description")
    for name, tensor in tensors.items():
        if _sum_of(tensor) != sums[name]:
            raise ValueError(f"the bytes of {name!r} do not match their checksum")
    return TensorFile(about, tensors, about[SEAL])


def _check_header(start: bytes, size: int) -> None:
    """Check that the header can be as long as it says, before memory is reserved for it."""
    if len(start) < 8:
        raise ValueError("it is cut off")
    length = struct.unpack("<Q", start)[0]
    if length > min(size - 8, LARGEST_HEADER):
        raise ValueError(f"its header claims {length} bytes, and the file has {size}")


def _sum_of(t: Tensor) -> str:
    """SHA-256 over type, shape and the digests of all pieces, computed by several threads where
    there are several: one is slower than a disk, and slower to start than one piece takes."""
    content = _bytes_of(t)
    pieces = [content[start : start + PIECE] for start in range(0, len(content), PIECE)]
    if len(pieces) < 2:
        digests = [_digest(piece) for piece in pieces]
    else:
        with ThreadPoolExecutor(min(THREADS, len(pieces))) as pool:
            digests = list(pool.map(_digest, pieces))
    about = f"{t.dtype}/{tuple(t.shape)}/".encode()
    return hashlib.sha256(about + b"".join(digests)).hexdigest()


def _digest(piece: memoryview) -> bytes:
    return hashlib.sha256(piece).digest()


def _bytes_of(t: Tensor) -> memoryview:
    return t.contiguous().flatten().view(torch.uint8).numpy().data


# ---------------------------------------------------------------------- graphs as tensors


def to_tensors(graph: Edges) -> dict[str, Tensor]:
    """The graph as tensors of a file, by what follows its name: a matrix of few clients, as records
    always held it, else lists."""
    if len(graph) <= SMALL:
        return {"": graph.dense()}
    fill = torch.tensor(graph.fill, dtype=graph.dtype)
    parts = (graph.i.int(), graph.j.int(), graph.values, fill)
    return dict(zip(LISTS, parts, strict=True))


def from_tensors(tensors: Mapping[str, Tensor], clients: int, fill: float | bool) -> Edges:
    """The graph that `to_tensors` wrote; of a matrix the entries other than `fill` are listed.

    Raises:
        ValueError: these are not the tensors of one; says what was found.
    """
    if "" in tensors:
        matrix = tensors[""]
        if tuple(matrix.shape[:2]) != (clients, clients):
            raise ValueError(str(tuple(matrix.shape)))
        is_set = matrix.dtype == torch.bool
        return Edges.of(matrix, bool(matrix.all()) if is_set else fill)
    if any(name not in tensors for name in LISTS):
        raise ValueError("nothing")
    i, j, values, fill_ = (tensors[name] for name in LISTS)
    i, j = i.long(), j.long()
    keys = i * clients + j
    fits = i.shape == j.shape == values.shape[:1] and bool((keys[1:] > keys[:-1]).all())
    if not fits or (len(i) and not 0 <= int(torch.min(i.min(), j.min())) <= int(j.max()) < clients):
        raise ValueError("a list of pairs that is not sorted")
    return Edges(clients, i, j, values, fill_.item())
