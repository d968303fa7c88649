"""The kernels of CGA against the formulas; where there is a GPU."""

from importlib.util import find_spec

import pytest
import torch

from scool.algorithms import CGA, cross_updates
from scool.learning.local_sgd import LocalSGD
from toys import assert_trees_close, classification, scattered, start, tanh_net

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or find_spec("triton") is None, reason="needs a GPU and Triton"
)


@pytest.mark.parametrize(("clients", "width", "count"), [(5, 700, 3), (3, 20_000, 11), (2, 9, 40)])
def test_products_and_sums(clients: int, width: int, count: int) -> None:
    from scool.algorithms.triton_updates import products, weighted_sum

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
    out = torch.full_like(mine, 7.0).cuda()
    weighted_sum(*inputs, weight.cuda(), out)
    sums = (weight.double()[:, None] @ updates)[:, 0]
    torch.testing.assert_close(out.cpu()[1:].double(), sums, rtol=1e-5, atol=1e-4)
    assert bool((out[0] == 7).all())


@pytest.mark.parametrize("topology", ["ring", "bipartite"])
def test_a_round_with_kernels_is_one_without(
    topology: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = CGA(sgd=LocalSGD(lr=0.5, steps=1, batch_size=3), topology=topology)
    found = []
    for has_triton in (True, False):
        monkeypatch.setattr(cross_updates, "HAS_TRITON", has_triton)
        engine, theta0 = start(classification((6,) * 8), tanh_net().float(), device="cuda")
        state = method.init(engine, theta0)
        state = state._replace(theta=scattered(engine, theta0, scale=1.0))
        found.append(method.step(engine, state, 0)[0].theta)
    assert_trees_close(*found, 1e-5)
