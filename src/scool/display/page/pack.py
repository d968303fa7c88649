"""Numbers small enough for a page: graphs as bytes, everything compressed."""

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from scool.display.records import RunRecord


def compress(content: bytes) -> str:
    """gzip in base64; the same content gives the same text."""
    return base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode("ascii")


def compress_json(content: Any) -> str:
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return compress(text.encode())


def quantise(w: Tensor) -> tuple[np.ndarray, float]:
    """Weights as bytes q with w = (q / 255)^2 max: fine where weights are small, zero stays zero
    and what is not zero stays visible.

    >>> import torch
    >>> quantise(torch.tensor([[1.0, 0.25], [1e-9, 0.0]]))[0].tolist()
    [[255, 128], [1, 0]]
    """
    values = np.nan_to_num(w.double().numpy(), nan=0.0, posinf=0.0, neginf=0.0).clip(min=0)
    top = float(values.max()) or 1.0
    codes = np.rint(255 * np.sqrt(values / top)).astype(np.uint8)
    return np.where((values > 0) & (codes == 0), np.uint8(1), codes), top


class Frames(NamedTuple):
    """The graphs of a run for the page."""

    about: dict[str, Any]  # rounds, and for each the number of its frame; the largest weights
    blob: str
    problems: list[str]


def pack_graphs(record: RunRecord, budget: int) -> Frames | None:
    """The graphs of the recorded rounds within `budget` characters; None where there is none.

    Equal graphs are kept once. Where all rounds would not fit, every n-th is kept, the first and
    the last always, and a problem says so.
    """
    problems: list[str] = []
    rounds = sorted(record.graph_files)
    every = 1
    while True:
        kept = sorted({*rounds[::every], *rounds[-1:]})
        frames = _frames(record, kept)
        if not frames.about["rounds"]:
            return None
        if len(frames.blob) <= budget or len(kept) <= 2:
            break
        every = max(every + 1, round(every * len(frames.blob) / budget + 0.49))
    shown = frames.about["rounds"]
    lost = len(kept) - len(shown)
    if lost:
        problems.append(f"{lost} graph files cannot be read: their rounds are left out")
    if every > 1:
        problems.append(
            f"the graphs of {len(shown)} of {len(rounds)} rounds are shown, to keep the page small"
        )
    return Frames(frames.about, frames.blob, problems + frames.problems)


def _frames(record: RunRecord, rounds: Sequence[int]) -> Frames:
    """Quantise and compress the graphs of some rounds."""
    shown: list[int] = []
    frame_of: list[int] = []
    tops: list[float] = []
    content: dict[bytes, int] = {}
    is_negative = False
    clients = record.num_clients
    for round in rounds:
        w = record.graph(round)
        if w is None or w.dim() != 2 or w.shape[0] != w.shape[1]:
            continue
        if clients is not None and len(w) != clients:
            continue
        clients = len(w)
        is_negative |= bool((w < 0).any())
        codes, top = quantise(w)
        frame = codes.tobytes()
        frame_of.append(content.setdefault(frame, len(content)))
        tops.append(float(f"{top:.6g}"))
        shown.append(round)
    about = {"rounds": shown, "frame": frame_of, "top": tops, "clients": clients}
    words = ["negative weights are drawn as 0"] if is_negative else []
    return Frames(about, compress(b"".join(content)), words)


def pack_matrix(w: Tensor) -> tuple[dict[str, Any], str]:
    """One graph, e.g. the true one."""
    codes, top = quantise(w)
    return {"rounds": [0], "frame": [0], "top": [top], "clients": len(w)}, compress(codes.tobytes())


def rounded(value: Any, digits: int = 6) -> Any:
    """Numbers to some significant digits, so that the page holds no noise; None for no number."""
    if isinstance(value, Mapping):
        return {name: rounded(v, digits) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(v, digits) for v in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if np.isfinite(value) else None
    return value
