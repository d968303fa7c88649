"""Graphs survive packing: close in value, zeros exact, small enough."""

import base64
import gzip
from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from scool.display.page.pack import compress, pack_graphs, quantise, rounded
from scool.display.records import read_run
from scool.recording.writer import RunWriter


def unpack(about: dict, blob: str, place: int) -> np.ndarray:
    """What `weights` of graph.js computes."""
    k = about["clients"]
    codes = np.frombuffer(gzip.decompress(base64.b64decode(blob)), dtype=np.uint8)
    frame = codes.reshape(-1, k, k)[about["frame"][place]]
    return (frame / 255.0) ** 2 * about["top"][place]


@given(st.integers(1, 8), st.integers(0, 99), st.floats(1e-6, 1e3))
def test_quantised_weights_are_close_and_keep_their_zeros(k: int, seed: int, size: float) -> None:
    rng = torch.Generator().manual_seed(seed)
    w = size * torch.rand(k, k, generator=rng) * (torch.rand(k, k, generator=rng) < 0.6)
    codes, top = quantise(w)
    back = (codes / 255.0) ** 2 * top
    assert np.abs(back - w.numpy()).max() <= top / 250
    assert ((codes == 0) == (w.numpy() == 0)).all()


def test_every_recorded_round_comes_back(made: Path) -> None:
    record = read_run(made / "scool-sbm-0")
    frames = pack_graphs(record, budget=10**6)
    assert frames is not None and frames.problems == []
    assert frames.about["rounds"] == [0, 1, 2, 3]
    for place in range(4):
        w = record.graph(place)
        assert w is not None
        np.testing.assert_allclose(
            unpack(frames.about, frames.blob, place), w.numpy(), atol=float(w.max()) / 250
        )


def folder_of(path: Path, graphs: list[torch.Tensor]) -> Path:
    folder = RunWriter.create(path, {"format": "scool-run-1", "method": "x", "status": "finished"})
    for t, w in enumerate(graphs):
        folder.write_graph(t, w)
        folder.append("metrics.jsonl", {"round": t, "bytes": 0, "messages": 0})
    return path


def test_equal_graphs_are_kept_once(tmp_path: Path) -> None:
    frames = pack_graphs(read_run(folder_of(tmp_path / "r", [torch.eye(5)] * 7)), 10**6)
    assert frames is not None and frames.about["frame"] == [0] * 7


def test_too_many_rounds_are_thinned_and_it_is_said(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    graphs = [torch.rand(30, 30, generator=rng) for _ in range(40)]
    record = read_run(folder_of(tmp_path / "r", graphs))
    frames = pack_graphs(record, budget=12_000)
    assert frames is not None and len(frames.blob) <= 12_000
    shown = frames.about["rounds"]
    assert shown[0] == 0 and shown[-1] == 39 and 2 < len(shown) < 40
    assert any(f"{len(shown)} of 40 rounds" in words for words in frames.problems)


def test_odd_weights_are_drawn_as_zero_and_named(tmp_path: Path) -> None:
    w = torch.tensor([[0.5, -0.5], [float("nan"), 1.0]])
    frames = pack_graphs(read_run(folder_of(tmp_path / "r", [w])), 10**6)
    assert frames is not None
    np.testing.assert_allclose(unpack(frames.about, frames.blob, 0), [[0.5, 0], [0, 1]], atol=4e-3)
    assert any("negative" in words for words in frames.problems)


def test_packing_is_the_same_every_time() -> None:
    assert compress(b"graph" * 99) == compress(b"graph" * 99)
    assert rounded({"a": [0.123456789, float("nan"), 3, "x"]}) == {"a": [0.123457, None, 3, "x"]}
