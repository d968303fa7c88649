"""Every kind of module trains as a loop over clients with `torch.optim` would train it."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
from scool.evaluation.accuracy import correct
from scool.learning.cross import CrossDraw
from scool.learning.local_sgd import LocalSGD, plan_batches
from scool.learning.losses import LOSSES, cross_entropy
from scool.models import Functional, cnn2, linear, mlp
from scool.models.looped import LoopWarning
from scool.types import Tree
from toys import assert_trees_close, assert_trees_equal, regression, scattered, start

TOKENS = 7
SGD = LocalSGD(lr=0.05, epochs=2, batch_size=2, momentum=0.9, weight_decay=0.01)


class Own(nn.Module):
    """A module of given parts with a forward function of one's own."""

    def __init__(self, rule: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.rule = rule
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.rule(self, x)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.GroupNorm(2, channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.body(x))


class SelfAttention(nn.Module):
    """Heads by hand, with the fused function of torch."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in self.split(x).unbind(2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + mixed.transpose(1, 2).flatten(2)

    def split(self, x: Tensor) -> Tensor:
        return self.qkv(x).unflatten(2, (3, self.heads, -1))


class Tied(nn.Module):
    """One matrix to embed and to read out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 6)
        self.read = nn.Linear(6, TOKENS, bias=False)
        self.read.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.read(torch.tanh(self.embed(x).mean(dim=1)))[:, :3]


class Constants(nn.Module):
    """Buffers that never change: a mean, a scale and a table of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.1, -0.2, 0.3, 0.0]))
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x - self.mean) * self.scale)  # type: ignore


class Gate(nn.Module):
    """Another branch for other values: nothing that `vmap` could follow."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.up.bias.sum() > 0:
            return self.up(x)
        return self.down(-x)


def in_place(module: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(len(x), 3, dtype=x.dtype)
    out += module.head(x)  # type: ignore
    return out


def with_tokens(rule: Callable[..., Tensor], **parts: nn.Module) -> nn.Module:
    return Own(rule, embed=nn.Embedding(TOKENS, 6, padding_idx=0), **parts)


class Case(NamedTuple):
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: int = 0
    loop: str = ""  # what the warning of the loop names
    is_stacked: bool = False  # has a fast form on a GPU
    is_random: bool = False  # batches are full, so that both loops draw the same numbers


IMAGE = (4, 9, 9)
WORDS = (5,)
SEQ = nn.Sequential
CASES = {
    "linear": Case(lambda: linear((4,), 3), (4,), is_stacked=True),
    "mlp": Case(lambda: mlp((2, 3), 3, (7, 5)), (2, 3), is_stacked=True),
    "cnn2": Case(lambda: cnn2((1, 16, 16), 3), (1, 16, 16), is_stacked=True),
    "group-norm-cnn": Case(
        lambda: SEQ(
            nn.Conv2d(4, 6, 3), nn.ReLU(), nn.GroupNorm(2, 6), nn.MaxPool2d(2, 1),
            nn.Conv2d(6, 4, 3), nn.GELU(), nn.GroupNorm(1, 4, affine=False), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(16, 3),
        ),
        IMAGE, is_stacked=True,
    ),
    "strided-padded": Case(
        lambda: SEQ(
            nn.Conv2d(4, 5, (3, 2), stride=(2, 1), padding=(2, 1), bias=False), nn.SiLU(),
            nn.AvgPool2d(2, padding=1), nn.AdaptiveAvgPool2d((2, 1)), nn.Flatten(),
            nn.Linear(10, 3),
        ),
        IMAGE, is_stacked=True,
    ),
    "dilated-grouped": Case(
        lambda: SEQ(
            nn.Conv2d(4, 8, 3, padding=2, dilation=2, groups=2), nn.ReLU(),
            nn.Conv2d(8, 4, 3, padding="same", padding_mode="circular"), nn.Tanh(),
            nn.ConvTranspose2d(4, 2, 3, stride=2), nn.Flatten(), nn.Linear(722, 3),
        ),
        IMAGE,
    ),
    "depthwise-separable": Case(
        lambda: SEQ(
            nn.Conv2d(4, 4, 3, groups=4, bias=False), nn.Conv2d(4, 6, 1),
            nn.InstanceNorm2d(6, affine=True), nn.ReLU6(), nn.AdaptiveMaxPool2d(2), nn.Flatten(),
            nn.Linear(24, 3),
        ),
        IMAGE,
    ),
    "residual": Case(
        lambda: SEQ(
            nn.Conv2d(4, 6, 3, stride=2), Residual(6), nn.MaxPool2d(3, 2, 1, ceil_mode=True),
            nn.Flatten(), nn.Linear(54, 3),
        ),
        IMAGE,
    ),
    "layer-norm-mlp": Case(
        lambda: SEQ(nn.Linear(4, 6), nn.LayerNorm(6), nn.ELU(), nn.Flatten(), nn.Linear(12, 3)),
        (2, 4), is_stacked=True,
    ),
    "activations": Case(
        lambda: SEQ(
            nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 6), nn.SiLU(), nn.Linear(6, 6), nn.Tanh(),
            nn.Linear(6, 6), nn.LeakyReLU(inplace=True), nn.Sigmoid(), nn.Linear(6, 3),
        ),
        (4,), is_stacked=True,
    ),
    "more-activations": Case(
        lambda: SEQ(nn.Linear(4, 6), nn.PReLU(), nn.Mish(), nn.Softplus(), nn.GLU(), nn.RMSNorm(3)),
        (4,),
    ),
    "conv1d": Case(
        lambda: SEQ(
            nn.Conv1d(3, 5, 3, padding=1), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(5, 4, 2),
            nn.AvgPool1d(2), nn.Flatten(), nn.Linear(4, 3),
        ),
        (3, 6),
    ),
    "text": Case(
        lambda: with_tokens(lambda m, x: m.head(m.embed(x).mean(dim=1)), head=nn.Linear(6, 3)),
        WORDS, TOKENS,
    ),
    "tied": Case(Tied, WORDS, TOKENS),
    "multihead-attention": Case(
        lambda: with_tokens(
            lambda m, x: m.head(m.mix(m.embed(x), m.embed(x), m.embed(x))[0].mean(dim=1)),
            mix=nn.MultiheadAttention(6, 2, batch_first=True), head=nn.Linear(6, 3),
        ),
        WORDS, TOKENS,
    ),
    "attention-by-hand": Case(
        lambda: SEQ(nn.Linear(4, 8), SelfAttention(8, 2), nn.Flatten(), nn.Linear(24, 3)), (3, 4)
    ),
    "transformer": Case(
        lambda: SEQ(
            nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, norm_first=True),
            nn.Flatten(), nn.Linear(12, 3),
        ),
        (3, 4),
    ),
    "constant-buffers": Case(Constants, (4,)),
    "same-layer-twice": Case(
        lambda: (lambda layer: SEQ(layer, nn.Tanh(), layer, nn.Linear(4, 3)))(nn.Linear(4, 4)), (4,)
    ),
    "frozen-layer": Case(
        lambda: SEQ(nn.Linear(4, 6).requires_grad_(False), nn.Tanh(), nn.Linear(6, 3)), (4,)
    ),
    "dropout": Case(
        lambda: SEQ(nn.Linear(4, 9), nn.ReLU(), nn.Dropout(0.4), nn.Linear(9, 3)), (4,),
        is_random=True,
    ),
    "attention-dropout": Case(
        lambda: with_tokens(
            lambda m, x: m.head(m.mix(m.embed(x), m.embed(x), m.embed(x))[0].mean(dim=1)),
            mix=nn.MultiheadAttention(6, 2, dropout=0.3, batch_first=True), head=nn.Linear(6, 3),
        ),
        WORDS, TOKENS, is_random=True,
    ),
    "control-flow": Case(
        lambda: SEQ(nn.Linear(4, 4), Gate(), nn.Linear(4, 3)), (4,),
        loop=r"layer '1' \(Gate\), in `if self.up.bias.sum\(\) > 0:`,.*choose by torch.where",
    ),
    "functional-dropout": Case(
        lambda: Own(lambda m, x: F.dropout(m.head(x), 0.5, m.training), head=nn.Linear(4, 3)), (4,),
        loop=r"random operation.*out of forward", is_random=True,
    ),
    "in-place": Case(
        lambda: Own(in_place, head=nn.Linear(4, 3)), (4,), loop=r"Own, in `out \+= .*out of place"
    ),
    "slow-gradient": Case(
        lambda: Own(
            lambda m, x: m.head(m.body(x).unfold(2, 2, 1).flatten(1)),
            body=nn.Conv1d(2, 3, 2), head=nn.Linear(36, 3),
        ),
        (2, 8), loop=r"the gradient of the model.*unfold_backward.*replace the operation",
    ),
    "numpy": Case(
        lambda: Own(
            lambda m, x: m.head(torch.from_numpy(x.detach().numpy().clip(-1, 1))),
            head=nn.Linear(4, 3),
        ),
        (4,), loop="no numpy",
    ),
    "lstm": Case(
        lambda: Own(
            lambda m, x: m.head(m.body(x)[0][:, -1]),
            body=nn.LSTM(4, 5, batch_first=True), head=nn.Linear(5, 3),
        ),
        (3, 4), loop=r"layer 'body' \(LSTM\) cannot",  # trains under vmap; its outputs do not
    ),
}  # fmt: skip


def build(case: Case, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(11)
    return case.build().to(dtype)


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
    found, losses = stacked_gradient(stacked, cross_entropy)(theta, batch)
    expected, means = vmap_gradient(Functional(module), cross_entropy)(theta, batch)
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
