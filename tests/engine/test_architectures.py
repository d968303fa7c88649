"""Every kind of module trains as a loop over clients with `torch.optim` would train it."""

import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from engine.architectures import CASES, SEQ, Case, Own, build
from engine.naive import (
    federation_of,
    inputs_of,
    naive_cross_loss,
    naive_training,
    personal,
)
from scool.data.federation import Federation
from scool.engine.steps.local_steps import stacked_gradient, vmap_gradient
from scool.engine.steps.phases import Batch
from scool.engine.steps.stacked import stack_module
from scool.errors import ModelError
from scool.evaluation.scores import correct
from scool.learning.local_sgd import LocalSGD, plan_batches
from scool.learning.losses import LOSSES, CrossDraw, cross_entropy
from scool.models import Functional
from scool.models.looped import LoopWarning
from scool.types import Tree
from toys import assert_trees_close, assert_trees_equal, regression, scattered, start

SGD = LocalSGD(lr=0.05, epochs=2, batch_size=2, momentum=0.9, weight_decay=0.01)


def data(case: Case) -> Federation:
    sizes = (4, 2, 6) if case.is_random else (5, 3, 4)
    return federation_of(case.shape, sizes, tokens=case.tokens)


def sgd_of(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def check_every_verb(case: Case, dtype: torch.dtype, atol: float) -> None:
    """train, measure, cross_loss (dense and sparse) and cross_gradient against loops."""
    federation, module = data(case), build(case, dtype)
    engine, theta0 = start(federation, module)
    theta = scattered(engine, theta0, scale=0.03)
    before = {name: t.clone() for name, t in theta.items()}
    for round in (0, 1):
        expected, losses = naive_training(federation, module, theta, SGD, sgd_of, round)
        found = engine.train(theta, SGD, round)
        assert_trees_close(found.theta, expected, atol=atol)
        torch.testing.assert_close(found.loss, losses, rtol=0, atol=atol)
        assert any(not torch.allclose(expected[n], theta[n], atol=100 * atol) for n in theta)
    shares = [
        correct(personal(module, theta, i).eval()(x), y, federation.classes[i]).double().mean()
        for i in range(3)
        for x, y in [inputs_of(replace(federation, train=federation.test), i, dtype)]
    ]
    torch.testing.assert_close(engine.measure(theta, "test", correct), torch.stack(shares))
    cross = naive_cross_loss(federation, module, theta)
    every, few = torch.ones(3, 3, dtype=torch.bool), torch.eye(3, dtype=torch.bool)
    for pairs in (every, few):
        losses = engine.cross_loss(theta, pairs, CrossDraw(cross_samples=0), 0)
        torch.testing.assert_close(losses[pairs], cross[pairs], rtol=0, atol=max(atol, 1e-6))
    check_cross_gradient(engine.cross_gradient, federation, module, theta, atol)
    assert_trees_equal(theta, before)


def check_cross_gradient(
    cross_gradient: Callable[..., Tree],
    federation: Federation,
    module: nn.Module,
    theta: Tree,
    atol: float,
) -> None:
    w = torch.tensor([[0.5, 0.2, 0.3], [0.0, 1.0, 0.0], [0.1, 0.6, 0.3]], dtype=torch.float64)
    sgd = LocalSGD(steps=1, batch_size=20)  # whole clients
    found = cross_gradient(theta, w, sgd, 0)
    for i in range(3):
        mine = personal(module, theta, i).eval()
        total = torch.zeros((), dtype=torch.float64)
        for j in range(3):
            x, y = inputs_of(federation, j, next(iter(theta.values())).dtype)
            total = total + w[i, j] * LOSSES[federation.task](mine(x), y).mean()
        total.backward()
        for name, p in mine.named_parameters():
            if not p.requires_grad:
                continue
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            torch.testing.assert_close(found[name][i], grad, rtol=0, atol=atol)


@pytest.mark.parametrize("name", CASES)
def test_every_verb_equals_a_loop(name: str) -> None:
    """float64: to 1e-9. A module that falls back to the loop says so once in its life."""
    case = CASES[name]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        check_every_verb(case, torch.float64, atol=1e-9)
    assert [w.category for w in told] == [LoopWarning] * bool(case.loop), [str(w) for w in told]
    if case.loop:
        with pytest.warns(LoopWarning, match=f"(?s){case.loop}"):
            warnings.warn(told[0].message, stacklevel=1)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.loop])
def test_single_precision(name: str) -> None:
    """float32: to 1e-5 after six steps of a round. ReLU and pools may flip; none does here."""
    check_every_verb(CASES[name], torch.float32, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_stacked_gradients_equal_vmap(name: str) -> None:
    case = CASES[name]
    module = build(case)
    stacked = stack_module(module)
    assert (stacked is not None) == case.is_stacked
    if stacked is None:
        return
    engine, theta0 = start(data(case), module)
    theta = scattered(engine, theta0, scale=0.1)
    x = torch.randn(3, 4, *case.shape, dtype=torch.float64)
    weight = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]]).double()
    batch = Batch(x, torch.randint(3, (3, 4)), weight)
    found, losses, _ = stacked_gradient(stacked, cross_entropy)(theta, batch)
    expected, means, _ = vmap_gradient(Functional(module), cross_entropy)(theta, batch)
    assert_trees_close(found, expected, atol=1e-11)
    torch.testing.assert_close(losses, means, rtol=0, atol=1e-12)
    assert all(not bool(t[2].any()) for t in found.values())  # no samples, no gradient


# ---------------------------------------------------------------------- which form


def test_lookalikes_have_no_stacked_form() -> None:
    """Subclasses, hooks and layers out of place compute something else."""

    class Twice(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    class Shifted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1

    hooked = nn.Linear(4, 3)
    hooked.register_forward_hook(lambda layer, inputs, output: 2 * output)
    tied = SEQ(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    for module in (
        Twice(nn.Linear(4, 3)),
        SEQ(Shifted(4, 3)),
        SEQ(hooked),
        tied,
        SEQ(nn.Conv2d(1, 2, 3), nn.Linear(4, 3), nn.Flatten()),  # a product along the width
        SEQ(nn.Conv2d(1, 2, 3)),  # outputs are images
        SEQ(nn.Linear(4, 3), nn.GroupNorm(1, 3)),
        SEQ(nn.Conv2d(1, 2, 3), nn.Flatten(2), nn.Flatten(), nn.Linear(8, 3)),
        SEQ(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, return_indices=True), nn.Flatten()),
    ):
        assert stack_module(module) is None, module


def test_a_second_look_finds_the_loop_in_training_only() -> None:
    """F.dropout draws in training: evaluation stays vectorised."""
    case = CASES["functional-dropout"]
    engine, theta0 = start(data(case), build(case))
    theta = engine.replicate(theta0)
    engine.measure(theta, "test", correct)  # nothing to say
    with pytest.warns(LoopWarning):
        engine.train(theta, SGD, 0)
    assert not engine.model.loops
    with engine.model.training():
        assert engine.model.loops
    engine.train(theta, SGD, 1)  # said once


def test_a_branch_on_the_batch_sees_the_samples_alone() -> None:
    """One after another, short batches come without padding: the sum is that of the samples."""
    branches: list[bool] = []

    def rule(module: nn.Module, x: Tensor) -> Tensor:
        branches.append(bool(x.sum() > 0))
        return module.head(x if branches[-1] else -2 * x)  # type: ignore

    federation, module = federation_of((4,)), Own(rule, head=nn.Linear(4, 3)).double()
    engine, theta0 = start(federation, module)
    theta = scattered(engine, theta0)
    with pytest.warns(LoopWarning, match=r"Own, in `branches\.append.*choose by torch\.where"):
        found = engine.train(theta, SGD, 0)
    branches.clear()
    expected, losses = naive_training(federation, module, theta, SGD, sgd_of)
    assert set(branches) == {True, False}
    assert_trees_close(found.theta, expected, atol=1e-9)
    torch.testing.assert_close(found.loss, losses, rtol=0, atol=1e-9)


def test_random_numbers_belong_to_the_client() -> None:
    """torch.rand_like in forward, also at evaluation: no say of chunks or the global generator."""

    def noisy() -> nn.Module:
        torch.manual_seed(1)
        return Own(lambda m, x: m.head(x + torch.rand_like(x)), head=nn.Linear(4, 3)).double()

    federation = federation_of((4,), (4, 2, 6))
    results = []
    for chunk in (3, 1):
        engine, theta0 = start(federation, noisy(), client_chunk=chunk)
        theta = engine.replicate(theta0)
        torch.manual_seed(chunk)
        state = torch.get_rng_state()
        with pytest.warns(LoopWarning, match="take the random numbers out of forward"):
            trained = engine.train(theta, SGD, 0)
        scores = [engine.measure(theta, "test", lambda o, y, c: o.sum(1)) for _ in range(2)]
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(*scores)
        results.append((trained, scores[0]))
    expected, _ = naive_training(federation, noisy(), theta, SGD, sgd_of)
    for trained, score in results:
        assert_trees_close(trained.theta, expected, atol=1e-9)
        assert torch.equal(score, results[0][1])


def test_integer_inputs_stay_integers() -> None:
    """Also ids that a float32 cannot hold."""
    large = 2**24 + 1
    federation = federation_of((1,), (4, 2), tokens=5)
    split = federation.train
    federation = replace(federation, train=split._replace(x=split.x + large))
    seen = []

    def rule(module: nn.Module, x: Tensor) -> Tensor:
        seen.append(x.dtype)
        return module.embed(x - large).mean(dim=1)  # type: ignore

    engine, theta0 = start(federation, Own(rule, embed=nn.Embedding(5, 3)))
    engine.train(engine.replicate(theta0), SGD, 0)
    assert set(seen) == {torch.int64}


# ---------------------------------------------------------------------- mistakes


class Counting(nn.Module):
    """Keeps something between batches."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.head, self.in_place = nn.Linear(4, 3), in_place
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            self.count.add_(1)  # type: ignore
        else:
            self.count = self.count + 1
        return self.head(x)


WRONG = [
    (lambda: nn.Linear(4, 2), (4,), r"\(2, 2\) for 2 inputs of shape \(4,\).*\(2, 3 or more\)"),
    (lambda: nn.Linear(4, 3), (5, 4), r"\(2, 5, 3\) for 2 inputs of shape \(5, 4\).*\(2, 3"),
    (lambda: SEQ(nn.Linear(4, 1), nn.Flatten(0)), (4,), r"shape \(2,\)"),
    (
        lambda: Own(lambda m, x: (m.head(x), x), head=nn.Linear(4, 3)),  # type: ignore
        (4,),
        "tuple",
    ),
    (lambda: nn.Linear(5, 3), (4,), r"fails on 2 inputs of shape \(4,\).*float32.*cannot be mul"),
    (lambda: Counting(True), (4,), "changes 'count'"),
    (lambda: Counting(False), (4,), "changes 'count'"),
]


@pytest.mark.parametrize(("module", "shape", "words"), WRONG)
def test_models_that_do_not_fit_are_refused(
    module: Callable[[], nn.Module], shape: tuple[int, ...], words: str
) -> None:
    engine, theta0 = start(federation_of(shape), module())
    with pytest.raises(ModelError, match=words):
        engine.train(engine.replicate(theta0), SGD, 0)
    assert not engine.model.module.training


def test_wrong_outputs_are_found_by_evaluation_too() -> None:
    engine, theta0 = start(federation_of((5, 4)), nn.Linear(4, 3))
    with pytest.raises(ModelError, match=r"\(2, 5, 3\)"):
        engine.measure(engine.replicate(theta0), "test", correct)


def test_regression_targets_are_not_broadcast() -> None:
    engine, theta0 = start(regression(outputs=2), nn.Linear(4, 1))
    with pytest.raises(ModelError, match=r"\(2, 1\).*expected is \(2, 2\)"):
        engine.train(engine.replicate(theta0), SGD, 0)


def test_embeddings_that_renormalise_themselves_are_refused() -> None:
    module = Own(lambda m, x: m.embed(x).mean(dim=1), embed=nn.Embedding(5, 3, max_norm=0.1))
    engine, theta0 = start(federation_of((2,), tokens=5), module)
    with pytest.raises(ModelError, match=r"changes 'embed\.weight'"):
        engine.train(engine.replicate(theta0), SGD, 0)


def test_batches_of_the_plan_cover_short_ones() -> None:
    """The comparison above includes padded batches and clients that stop earlier."""
    federation = data(CASES["linear"])
    plan = plan_batches(SGD, federation.train.mask, torch.arange(3), 0, 3)
    assert 0 < float(plan.weight[0].mean()) < 1 and not bool(plan.active.all())
