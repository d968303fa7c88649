"""One message as bytes: a header that is signed, tensors as safetensors, and a check of everything
before anything is used. No pickle.

The header is a list of JSON: run, sender, round, slot, body, digest of the tensors. What begins it,
the run, is signed and does not travel: both ends know it. A model is its tensors one after the
other, without their names, because both ends know these, too.
"""

import base64
import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from scool.errors import ScoolError
from scool.types import Params

MAGIC = b"SCP2"
LARGEST_HEADER = 2**16 - 1
LAYOUT = 8  # bytes before a model that tell names, shapes and types apart
_LENGTHS = struct.Struct(">4sHIB")  # magic, then the lengths of header, tensors and signature
_FIELDS = {"run": str, "sender": int, "round": int, "slot": str, "body": dict, "tensors": str}


class WireError(ScoolError):
    """A message is not what it should be; nothing of it was used."""


class Signer(Protocol):
    """Signs in the name of this peer, and checks what others signed."""

    def sign(self, header: bytes) -> bytes: ...
    def is_from(self, sender: int, header: bytes, signature: bytes) -> bool: ...


class Message(NamedTuple):
    """What one peer says in one slot of one round."""

    run: str
    sender: int
    round: int
    slot: str
    body: Mapping[str, Any]  # small, of what JSON can hold
    tensors: Mapping[str, Tensor] = {}
    digest: str = ""  # of the signed header; two different ones for a slot contradict each other
    signed: bytes = b""  # header and signature, as they arrived

    @property
    def key(self) -> str:
        """Where others fetch it."""
        return f"{self.round}/{self.slot}"


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as safetensors; the same tensors give the same bytes. Empty for none."""
    plain = {name: t.detach().cpu().contiguous() for name, t in sorted(tensors.items())}
    return safetensors.torch.save(plain) if plain else b""


def digest_of(data: bytes) -> str:
    """SHA-256 in 43 characters that a key may have; empty for nothing."""
    sha = hashlib.sha256(data).digest()
    return base64.urlsafe_b64encode(sha)[:-1].decode() if data else ""


def encode(message: Message, signer: Signer | None) -> bytes:
    """Bytes for the wire, signed if there is a signer (a network inside one process needs none)."""
    content = tensor_bytes(message.tensors)
    fields = (*message[: len(_FIELDS) - 1], digest_of(content))
    header = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    signature = signer.sign(header) if signer else b""
    rest = header[len(_start(message.run)) :]
    if len(rest) > LARGEST_HEADER:
        raise WireError(f"a record of {len(rest)} bytes, where {LARGEST_HEADER} are allowed")
    return (
        _LENGTHS.pack(MAGIC, len(rest), len(content), len(signature)) + rest + content + signature
    )


def _start(run: str) -> bytes:
    """What all headers of a run begin with."""
    return json.dumps([run]).encode()[:-1] + b","


def decode(data: bytes, run: str, signer: Signer | None, largest: int) -> Message:
    """The message of this run, if its lengths, header, checksum and signature are right.

    Raises:
        WireError: says what is wrong.
    """
    if not _LENGTHS.size <= len(data) <= largest:
        raise WireError(f"a message of {len(data)} bytes, where at most {largest} are allowed")
    magic, *lengths = _LENGTHS.unpack_from(data)
    if magic != MAGIC or _LENGTHS.size + sum(lengths) != len(data):
        raise WireError("a message whose lengths do not fit: it is cut off or of another version")
    start, parts = _LENGTHS.size, []
    for length in lengths:
        parts.append(data[start : start + length])
        start += length
    rest, content, signature = parts
    header = _start(run) + rest
    named = read_header(header)
    if signer is not None and not signer.is_from(named["sender"], header, signature):
        raise WireError(f"a message in the name of peer {named['sender']} with a wrong signature")
    if digest_of(content) != named["tensors"]:
        raise WireError(f"the tensors of peer {named['sender']} do not match their checksum")
    named |= {"tensors": _read_tensors(content), "signed": header + signature}
    return Message(**named, digest=digest_of(header))


def read_header(header: bytes) -> dict[str, Any]:
    """The fields of a header, of the right kinds.

    Raises:
        WireError: says what is wrong.
    """
    try:
        fields = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise WireError("a message whose header is not JSON") from error
    if not isinstance(fields, list) or len(fields) != len(_FIELDS):
        raise WireError("a message whose header has other fields")
    named = dict(zip(_FIELDS, fields, strict=True))
    for name, kind in _FIELDS.items():
        if type(named[name]) is not kind:
            raise WireError(f"a message whose {name!r} is not a {kind.__name__}")
    return named


def is_repeated(before: Message, again: Message, but: str) -> bool:
    """Whether a record says what it said before, or all of it with or without the field `but`: a
    peer that came back from a checkpoint repeats its round, and may know less of the one before."""
    bodies = [{n: x for n, x in said.body.items() if n != but} for said in (before, again)]
    is_less = (but in before.body) != (but in again.body) and bodies[0] == bodies[1]
    return before.digest == again.digest or (is_less and not before.tensors and not again.tensors)


def model_bytes(model: Params) -> bytes:
    """A model for those who have one like it; the same model gives the same bytes."""
    plain = [t.detach().cpu().contiguous() for _, t in sorted(model.items())]
    return b"".join(
        [_layout(model), *(t.reshape(-1).view(torch.uint8).numpy().data for t in plain)]
    )


def _layout(model: Params) -> bytes:
    told = [(name, str(t.dtype), list(t.shape)) for name, t in sorted(model.items())]
    return hashlib.sha256(json.dumps(told).encode()).digest()[:LAYOUT]


def read_model(data: bytes, like: Params) -> Params:
    """A model of the agreed names, shapes and types, with finite numbers.

    Raises:
        WireError: says what is wrong.
    """
    size = LAYOUT + sum(t.numel() * t.element_size() for t in like.values())
    if len(data) != size or data[:LAYOUT] != _layout(like):
        found = f"{len(data)} bytes, where {size} are right"
        raise WireError(f"a model of other names, shapes or types than agreed ({found})")
    at, found = LAYOUT, dict[str, Tensor]()
    for name, agreed in sorted(like.items()):
        t = found[name] = torch.empty(agreed.shape, dtype=agreed.dtype)
        room = t.reshape(-1).view(torch.uint8).numpy()
        room[:] = np.frombuffer(data, np.uint8, len(room), at)
        at += len(room)
        if (
            t.is_floating_point()
            and t.numel()
            and not bool(torch.stack(t.aminmax()).isfinite().all())
        ):
            raise WireError(f"a model whose {name!r} has numbers that are not finite")
    return {name: found[name] for name in like}


def _read_tensors(data: bytes) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(data) if data else {}
    except (SafetensorError, ValueError, KeyError, RuntimeError, RecursionError) as error:
        raise WireError("tensors that cannot be read") from error
