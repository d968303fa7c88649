"""Modules of one's own: what they keep beside parameters, and what is said where they are wrong."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import scool
from records import change_header, make_old
from scool.cli.main import dispatch
from scool.errors import ConfigError, ModelError, RunError
from scool.models.looped import LoopWarning
from scool.recording.folder import RunFolder
from toys import classification, poisoned


class WithScale(nn.Module):
    """A frozen layer, a buffer that is saved and one that is not, and two names of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3).requires_grad_(False)
        self.last = nn.Linear(3, 3, bias=False)
        self.again = self.last
        self.register_buffer("scale", torch.randn(3))
        self.register_buffer("ones", torch.ones(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.again(torch.tanh(self.first(x))) * self.scale * self.ones


class After(nn.Module):
    """A linear layer, and a function of its outputs."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(4, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear(x))


def run(build: Any, out: Path, **options: Any) -> scool.Result:
    federation = classification()
    return scool.fit(
        federation, build, scool.LocalOnly(), rounds=2, device="cpu", out=out, **options
    )


def test_frozen_layers_and_buffers_come_back(tmp_path: Path) -> None:
    result = run(WithScale(), tmp_path / "run")
    x = result.federation.test.x[:5]
    kept = load_file(tmp_path / "run" / "fixed.safetensors")
    assert kept.keys() == {"first.weight", "first.bias", "scale"}
    result.export(tmp_path / "python")
    assert dispatch(["export", str(tmp_path / "run"), "--out", str(tmp_path / "shell")]) == 0
    for place in ("run", "python", "shell"):
        model = scool.load_model(tmp_path / place, 1, module=WithScale)
        assert torch.equal(model(x), result.outputs(1, x)), place
        assert torch.equal(model.predict(x), result.predict(1, x)), place
    with pytest.raises(RunError, match="exists already"):
        result.export(tmp_path / "python")
    with pytest.raises(ConfigError, match=r"client = 9 .* from client-0000\S* to client-0003"):
        scool.load_model(tmp_path / "python", 9, module=WithScale)


def test_records_without_them_are_still_read(tmp_path: Path) -> None:
    module = WithScale()
    result = run(module, tmp_path / "run")
    more = WithScale()
    more.register_buffer("more", torch.ones(3))
    with pytest.raises(ConfigError, match=r"more is \(3,\) .* missing in the record"):
        scool.load_model(tmp_path / "run", 1, module=more)
    (tmp_path / "run" / "fixed.safetensors").unlink()
    with pytest.raises(RunError, match=r"fixed\.safetensors is missing"):
        scool.load_model(tmp_path / "run", 1, module=module)
    make_old(tmp_path / "run")
    with pytest.raises(RunError, match=r"fixed\.safetensors is missing"):  # its identity tells
        scool.load_model(tmp_path / "run", 1, module=module)
    identity = RunFolder(tmp_path / "run").header["identity"]
    del identity["fixed"]  # as the oldest versions wrote it
    change_header(tmp_path / "run", identity=identity)
    x = result.federation.test.x[:5]
    model = scool.load_model(tmp_path / "run", 1, module=module)
    assert torch.equal(model(x), result.outputs(1, x))
    assert run(module, tmp_path / "run", resume=True).rounds == 2


def test_a_run_does_not_go_on_with_another_buffer(tmp_path: Path) -> None:
    module = WithScale()
    run(module, tmp_path / "run")
    assert run(module, tmp_path / "run", resume=True).rounds == 2
    with torch.no_grad():
        module.get_buffer("scale").add_(1.0)
    with pytest.raises(RunError, match="its frozen parameters or buffers differ"):
        run(module, tmp_path / "run", resume=True)


def test_more_outputs_than_classes(tmp_path: Path) -> None:
    """They are never a client's own classes, and unmasked they count as wrong."""
    wide = nn.Linear(4, 9)
    with torch.no_grad():
        wide.bias[5] = 100.0  # always the largest output
    result = run(wide, tmp_path / "run")
    assert result.accuracy.nanmean() > 0
    assert result.history[-1]["unmasked_accuracy_mean"] == 0
    model = scool.load_model(tmp_path / "run", 0, module=wide)
    for said in (model.predict, lambda x: result.predict(0, x)):
        assert bool((said(result.federation.test.x) < 3).all())


def test_tokens_stay_whole_in_a_loaded_model(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clients = [(rng.integers(0, 9, (20, 4)), rng.integers(0, 2, 20)) for _ in range(2)]
    federation = scool.from_arrays(clients, tokens=True)

    def build() -> nn.Module:
        return nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(12, 2))

    result = scool.fit(federation, build, scool.LocalOnly(), rounds=1, out=tmp_path / "run")
    result.export(tmp_path / "export")
    for place in ("run", "export"):
        model = scool.load_model(tmp_path / place, 1, module=build)
        assert torch.equal(model(clients[0][0]), result.outputs(1, clients[0][0]))
        with pytest.raises(ConfigError, match="give whole numbers"):
            model.predict(clients[0][0] + 0.5)
        with pytest.raises(ConfigError, match=r"inputs of shape \(20, 3\)"):
            model.predict(clients[0][0][:, :3])


@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [
        (None, ConfigError, "model = None is not possible: give a name"),
        (nn.Identity(), ModelError, "no trainable parameters"),
        (lambda: None, ModelError, "model builds a NoneType: give a function that returns"),
        (lambda width: nn.Linear(width, 3), ModelError, "cannot be called without arguments"),
        (nn.Linear(7, 2), ModelError, "the model fails on .*; give a model for such inputs"),
        (nn.Linear(4, 3, dtype=torch.complex64), ModelError, "complex64 for .*: give real"),
        (nn.LSTM(4, 3), ModelError, "the model gives a tuple for 2 inputs .*, not a tensor"),
        (nn.LazyLinear(3), ModelError, "lazy layers, whose sizes are not known yet"),
        (
            After(torch.squeeze),
            ModelError,
            r"shape \(3,\) for a sample alone, expec",
        ),
    ],
)
def test_what_is_no_model_is_named(model: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        scool.fit(classification(), model, scool.LocalOnly(), rounds=1, device="cpu")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda out: out.softmax(dim=1), "are probabilities, and are taken for logits"),
        (lambda out: out - out.mean(dim=0), "depends on the other samples of its batch"),
        (lambda out: out + torch.rand_like(out), ""),
    ],
)
def test_what_a_model_should_not_do_is_said(function: Any, words: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        alone = scool.LocalOnly(sgd=scool.LocalSGD(lr=0.1))
        scool.fit(classification(), After(function), alone, rounds=1, device="cpu")
    said = [str(w.message) for w in caught if not isinstance(w.message, LoopWarning)]
    assert len(said) == bool(words) and words in "".join(said)


def test_settings_for_images_on_small_data_are_warned_about() -> None:
    with pytest.warns(UserWarning, match=r"clients have \d+ training samples \(median\), and Loc"):
        scool.fit(classification(), "linear", scool.LocalOnly(), rounds=1, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own = scool.LocalOnly(sgd=scool.LocalSGD(batch_size=8))
        scool.fit(classification(), "linear", own, rounds=1, device="cpu")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("seed", 1.5, "give a whole number"),
        ("seed", -1, "give 0 or more"),
        ("rounds", True, "give a whole number"),
        ("eval_every", "a", "give a whole number"),
        ("slow_momentum", "a", "give a number"),
        ("strict", "no", "give True or False"),
        ("out", 5, "give the name of a folder"),
    ],
)
def test_wrong_arguments_of_fit_are_named(option: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"{option} = {value!r} is not possible: {words}"):
        scool.fit(classification(), "linear", scool.LocalOnly(), device="cpu", **{option: value})


class Broken:
    """A method that gives back whatever a test wants."""

    def __init__(self, give: Callable[[Any, Any], Any]) -> None:
        self.give = give

    def init(self, engine: Any, theta0: Any) -> Any:
        return scool.LocalOnly().init(engine, theta0)

    def step(self, engine: Any, state: Any, round: int) -> Any:
        return self.give(*scool.LocalOnly().step(engine, state, round))


@pytest.mark.parametrize(
    ("give", "words"),
    [
        (lambda state, info: state, "Broken.step gave a LocalState: return"),
        (lambda state, info: ((), info), "the state of Broken is a tuple without `theta`"),
        (lambda state, info: (state, {}), r"no info\['train_loss'\]"),
        (
            lambda state, info: (state, {"train_loss": info["train_loss"]}),
            r"info\['graph'\] = None: give the weights \(4, 4\)",
        ),
        (
            lambda state, info: (state, {**info, "graph": torch.eye(3)}),
            r"info\['graph'\] = \(3, 3\)",
        ),
        (
            lambda state, info: (state, {**info, "graph": torch.eye(4) * torch.inf}),
            r"Broken.step gave info\['graph'\] with weights that are not finite: give finite",
        ),
        (
            lambda state, info: (state, {**info, "graph": 2 * torch.eye(4) - 0.25}),
            r"with a weight of -0.25: give weights of 0 or more .*, or put `averages = False`",
        ),
        (
            lambda state, info: (state, {**info, "graph": torch.full((4, 4), 1.5)}),
            r"info\['graph'\] with a row that sums to 6: give weights of 0 or more",
        ),
    ],
)
def test_a_method_that_breaks_the_contract_is_named(give: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        scool.fit(classification(), "linear", Broken(give), rounds=1, device="cpu")


def test_a_method_may_take_other_sums_than_averages() -> None:
    signed = Broken(lambda state, info: (state, {**info, "graph": 7 * torch.eye(4) - 1}))
    signed.averages = False  # type: ignore[attr-defined]
    for options in ({}, {"slow_momentum": 0.5}):
        scool.fit(classification(), "linear", signed, rounds=1, device="cpu", **options)
    paper = scool.SCooL(prior=scool.SBM(2), weighting="paper")
    result = scool.fit(classification(), "linear", paper, rounds=1, device="cpu")
    assert float(result.graphs[0].sum(dim=1).max()) > 1.01


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (lambda w: w[:, :3], r"w = \(4, 3\) is not possible: give a tensor .* shape \(4, 4\)$"),
        (lambda w: w.numpy(), "w = ndarray is not possible: give a tensor"),
        (lambda w: w * torch.nan, r"not finite in 3 of 4 rows \(0, 2, 3\): give finite weights"),
        (lambda w: w.fill_diagonal_(torch.inf), "w has weights that are not finite in 3 of 4 rows"),
    ],
)
def test_a_method_that_mixes_with_odd_weights_is_told_so(odd: Any, words: str) -> None:
    """Client 1 is in quarantine: what its row says does not matter."""

    class Mixer(Broken):
        def step(self, engine: Any, state: Any, round: int) -> Any:
            engine.mix(odd(torch.full((4, 4), 0.25)), state.theta)

    with pytest.raises(ConfigError, match=words):
        scool.fit(poisoned(classification(), 1), "linear", Mixer(print), rounds=1, device="cpu")


def test_a_prior_that_breaks_the_contract_is_named() -> None:
    class Odd:
        mixes, self_mode = "updates", "gated"

        def __getattr__(self, name: str) -> Any:
            return getattr(scool.SBM(), name)

        def e_step(self, state: Any, evidence: Any) -> Any:
            return state._replace(w=torch.full((4, 4), torch.nan))

    with pytest.raises(ConfigError, match=r"e_step of Odd gave w of shape \(4, 4\), 16 entries"):
        scool.fit(classification(), "linear", scool.SCooL(prior=Odd()), rounds=1, device="cpu")  # type: ignore[arg-type]
    Odd.e_step = lambda self, state, evidence: state._replace(w=torch.full((4, 4), -0.5))  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="0 entries of it not finite and 16 negative: give"):
        scool.fit(classification(), "linear", scool.SCooL(prior=Odd()), rounds=1, device="cpu")  # type: ignore[arg-type]
    Odd.mixes = "update"
    with pytest.raises(ConfigError, match="unknown mixes of Odd 'update': did you mean 'updates'"):
        scool.SCooL(prior=Odd())  # type: ignore[arg-type]
    Odd.mixes, Odd.self_mode = "updates", "gted"
    with pytest.raises(ConfigError, match="unknown self_mode of Odd 'gted': did you mean 'gated'"):
        scool.SCooL(prior=Odd())  # type: ignore[arg-type]


def test_what_records_cannot_hold_is_named(tmp_path: Path) -> None:
    class Sparse(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 3)
            self.register_buffer("table", torch.eye(3).to_sparse())

    federation = classification()
    scool.fit(federation, Sparse, scool.LocalOnly(), rounds=1, device="cpu")
    with pytest.raises(ModelError, match="'table' of the model is a sparse_coo float32 tensor"):
        run(Sparse, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rounds": np.int64(1), "seed": np.int32(0), "device": "cpu"}
    scool.fit(classification(), "linear", scool.LocalOnly(), out=tmp_path / "r", **options)
    assert json.loads((tmp_path / "r" / "run.json").read_text())["seed"] == 0


def test_printed_things_hold_no_data() -> None:
    result = scool.fit(classification(), "linear", scool.LocalOnly(), rounds=1, device="cpu")
    assert len(repr(result)) < 200 and "tensor" not in repr(result)
    assert len(repr(result.federation.client(0))) < 200
    with pytest.raises(ConfigError) as caught:
        scool.fit([np.zeros((500, 9))], "linear", scool.LocalOnly())  # type: ignore[arg-type]
    assert len(str(caught.value)) < 250
    with pytest.raises(ConfigError, match="unknown table 'clint'"):
        result.to_pandas("clint")  # type: ignore[arg-type]
