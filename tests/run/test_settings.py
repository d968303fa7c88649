"""The options of a run: declared once, checked once, typed as keyword arguments of `fit`."""

import inspect
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

import scool
from scool.contracts import VERBS, Method
from scool.engine.local import LocalEngine
from scool.errors import ConfigError
from scool.run.checks import as_method
from scool.run.config import Settings
from scool.run.options import Changes, RunSettings
from toys import classification

METHOD = scool.LocalOnly()


def test_type_checkers_know_the_options_as_keyword_arguments() -> None:
    known, offered = get_type_hints(RunSettings), get_type_hints(Changes)
    assert offered.keys() == known.keys()
    python_only = {
        "metrics",
        "availability",
        "joins",
        "client_lr",
        "loss",
        "class_weights",
        "start",
    }
    assert all(offered[name] == known[name] for name in known.keys() - python_only)
    help_text = " ".join((inspect.getdoc(Changes) or "").split())
    assert all(f"`{field.name}` (" in help_text for field in fields(RunSettings))


def test_options_come_all_at_once_or_by_name() -> None:
    settings = RunSettings(rounds=2, seed=3, device="cpu")
    result = scool.fit(classification(), "linear", METHOD, settings)
    assert (result.rounds, result.seed) == (2, 3)
    result = scool.fit(classification(), "linear", METHOD, Settings(rounds=2, seed=3), seed=1)
    assert (result.rounds, result.seed) == (2, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"round": 5}, "unknown option of fit 'round': did you mean 'rounds'"),
        ({"precision": "float16"}, "unknown precision 'float16'"),
        ({"settings": {"rounds": 5}}, "give RunSettings"),
        ({"device": 0}, "device = 0 is not possible: give a text"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        scool.fit(classification(), "linear", METHOD, **options)


def test_a_class_of_ones_own_is_a_method_with_what_it_declares() -> None:
    class Own:
        validation = 0.25
        meets = "server"

        def init(self, engine: Any, theta0: Any) -> Any:
            return METHOD.init(engine, theta0)

        def step(self, engine: Any, state: Any, round: int) -> Any:
            assert bool((engine.val_sizes > 0).all())
            return METHOD.step(engine, state, round)

        def remark(self, rounds: int) -> str:
            return f"{rounds} rounds are few"

    own = Own()
    method = as_method(own)
    assert isinstance(method, Method) and method.plain is own and as_method(METHOD) is METHOD
    assert (method.validation, method.meets, method.averages) == (0.25, "server", True)
    with pytest.warns(UserWarning, match="1 rounds are few"):
        scool.fit(classification(), "linear", own, rounds=1, device="cpu", model_average=0.5)


def test_a_method_is_refused_by_the_verbs_that_the_engine_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LocalEngine, "offers", VERBS - {"cross_loss"})
    assert scool.fit(classification(), "linear", METHOD, rounds=1).rounds == 1
    with pytest.raises(ConfigError, match=r"SCooL is not possible here: .* uses cross_loss, which"):
        scool.fit(classification(), "linear", scool.SCooL(), rounds=1)


def test_progress_is_shown_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for verbose, lines in ((None, 0), (False, 0), (True, 1)):  # this is not a terminal
        scool.fit(classification(), "linear", METHOD, rounds=2, verbose=verbose)
        said = capsys.readouterr()
        assert not said.out and len(said.err.splitlines()) == lines
    assert "round 2/2" in said.err
    with pytest.raises(ConfigError, match="verbose = 'no' is not possible"):
        scool.fit(classification(), "linear", METHOD, rounds=1, verbose="no")  # type: ignore
