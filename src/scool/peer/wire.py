"""One message as bytes: a header that is signed, tensors as safetensors, and a check of everything
before anything is used. No pickle."""

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from scool.errors import ScoolError
from scool.types import Params

MAGIC = b"SCP1"
LARGEST_HEADER = 64 * 1024
_LENGTHS = struct.Struct(">4sIQI")  # magic, then the lengths of header, tensors and signature
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
    tensors: Mapping[str, Tensor]
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
    return hashlib.sha256(data).hexdigest()


def encode(message: Message, signer: Signer | None) -> bytes:
    """Bytes for the wire, signed if there is a signer (a network inside one process needs none)."""
    content = tensor_bytes(message.tensors)
    named = {name: getattr(message, name) for name in ("run", "sender", "round", "slot", "body")}
    named["tensors"] = digest_of(content)
    header = json.dumps(named, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    signature = signer.sign(header) if signer else b""
    lengths = _LENGTHS.pack(MAGIC, len(header), len(content), len(signature))
    return lengths + header + content + signature


def decode(data: bytes, signer: Signer | None, largest: int) -> Message:
    """The message, if its lengths, header, checksum and signature are right.

    Raises:
        WireError: says what is wrong.
    """
    if not _LENGTHS.size <= len(data) <= largest:
        raise WireError(f"a message of {len(data)} bytes, where at most {largest} are allowed")
    magic, *lengths = _LENGTHS.unpack_from(data)
    if magic != MAGIC or lengths[0] > LARGEST_HEADER or _LENGTHS.size + sum(lengths) != len(data):
        raise WireError("a message whose lengths do not fit: it is cut off or of another version")
    start, parts = _LENGTHS.size, []
    for length in lengths:
        parts.append(data[start : start + length])
        start += length
    header, content, signature = parts
    named = _read_header(header)
    if signer is not None and not signer.is_from(named["sender"], header, signature):
        raise WireError(f"a message in the name of peer {named['sender']} with a wrong signature")
    if digest_of(content) != named["tensors"]:
        raise WireError(f"the tensors of peer {named['sender']} do not match their checksum")
    named |= {"tensors": _read_tensors(content), "signed": header + signature}
    return Message(**named, digest=digest_of(header))


def _read_header(header: bytes) -> dict[str, Any]:
    """The fields of a header, of the right kinds."""
    try:
        named = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise WireError("a message whose header is not JSON") from error
    if not isinstance(named, dict) or named.keys() != _FIELDS.keys():
        raise WireError("a message whose header has other fields")
    for name, kind in _FIELDS.items():
        if type(named[name]) is not kind:
            raise WireError(f"a message whose {name!r} is not a {kind.__name__}")
    return named


def read_model(data: bytes, like: Params) -> Params:
    """A model of the agreed names, shapes and types, with finite numbers.

    Raises:
        WireError: says what is wrong.
    """
    tensors = _read_tensors(data)
    if tensors.keys() != like.keys():
        odd = sorted(tensors.keys() ^ like.keys())
        raise WireError(f"a model with other tensors than agreed: {', '.join(odd[:3])}")
    for name, t in tensors.items():
        if t.shape != like[name].shape or t.dtype != like[name].dtype:
            found, agreed = (f"{x.dtype} {tuple(x.shape)}" for x in (t, like[name]))
            raise WireError(f"a model whose {name!r} is {found}: agreed is {agreed}")
        if t.is_floating_point() and not bool(torch.isfinite(t).all()):
            raise WireError(f"a model whose {name!r} has numbers that are not finite")
    return tensors


def _read_tensors(data: bytes) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(data) if data else {}
    except (SafetensorError, ValueError, KeyError, RuntimeError, RecursionError) as error:
        raise WireError("tensors that cannot be read") from error
