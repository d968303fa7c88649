"""The kernels of CGA against the formulas; where there is a GPU."""

from importlib.util import find_spec
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from scool.algorithms import CGA
from scool.engine.steps import updates as engine_updates
from scool.learning.local_sgd import LocalSGD
from toys import assert_trees_close, classification, scattered, start

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or find_spec("triton") is None, reason="needs a GPU and Triton"
)


@pytest.mark.parametrize(
    ("clients", "width", "count"),
    [(5, 700, 3), (3, 20_000, 11), (2, 9, 20), (2, 500, 40), (2, 9, 64)],
)
@pytest.mark.parametrize("programs", [4, 12_800])  # in many steps each, and in one
def test_products_and_sums(
    clients: int, width: int, count: int, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scool.engine.kernels import updates as triton_updates
    from scool.engine.kernels.updates import products, weighted_sum

    monkeypatch.setattr(triton_updates, "_PROGRAMS", programs)
    rng = torch.Generator().manual_seed(0)
    mine = torch.randn(clients, width, generator=rng)
    theirs = torch.randn(clients * count, width, generator=rng)
    chosen = torch.arange(1, clients)
    rows = torch.randperm(len(theirs), generator=rng)[: len(chosen) * count].view(-1, count)
    theirs[rows[0, 1]] = torch.nan
    rows[0, 1] = -1
    weight = torch.rand(rows.shape, generator=rng)
    updates = mine.double()[chosen][:, None] - theirs.double()[rows]
    updates[rows < 0] = 0
    inputs = [t.cuda() for t in (mine, theirs, chosen, rows)]
    found = products(*inputs).cpu()
    expected = updates @ updates.mT
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-6
    out = weighted_sum(*inputs, weight.cuda())
    sums = (weight.double()[:, None] @ updates)[:, 0]
    torch.testing.assert_close(out.cpu().double(), sums, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("variant", ["vector", "tensor"])
@pytest.mark.parametrize("topology", ["ring", "bipartite", "complete"])
def test_a_round_with_kernels_is_one_without(
    topology: str, variant: Literal["vector", "tensor"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Biases are small: without float64 their programs would be singular and mean nothing."""
    from scool.engine.kernels import updates as triton_updates

    calls: list[int] = []

    def counted(*inputs: Tensor) -> Tensor:
        calls.append(1)
        return products(*inputs)

    products = triton_updates.products
    monkeypatch.setattr(triton_updates, "products", counted)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 128), nn.Tanh(), nn.Linear(128, 3))
    method = CGA(
        sgd=LocalSGD(lr=0.5, steps=1, batch_size=3), topology=topology, variant=variant, margin=0.1
    )
    found = []
    for device, has_triton in (("cuda", True), ("cuda", False), ("cpu", False)):
        monkeypatch.setattr(engine_updates, "HAS_TRITON", has_triton)
        engine, theta0 = start(classification((6,) * 8), net, device=device)
        state = method.init(engine, theta0)
        state = state._replace(theta=scattered(engine, theta0, scale=1.0))
        after = method.step(engine, state, 0)[0].theta
        found.append({n: t.cpu() for n, t in after.items()})
    kernels, plain, cpu = found
    expected = {"ring": 2, "bipartite": 3, "complete": 1}  # of two layers, where large enough
    assert len(calls) == expected[topology]
    assert_trees_close(kernels, plain, 1e-4)
    assert_trees_close(plain, cpu, 2e-2)  # products of local training are in TF32
