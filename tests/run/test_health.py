"""One notion of a client's health, from the engine to the records and back."""

from pathlib import Path
from typing import Any

import pytest

import scool
from scool.engine.local import LocalEngine
from scool.errors import QuarantineError
from scool.health import BROKEN_DATA, Health, Reason, broke_in
from toys import classification, overflowing, poisoned, start


def test_who_is_absent_comes_back_and_who_is_in_quarantine_does_not() -> None:
    engine, _ = start(poisoned(classification(), 1))
    engine.health.absent[3] = True
    assert engine.active.tolist() == [True, False, True, False]
    assert [engine.health.of(i) for i in (0, 1, 3)] == ["healthy", "quarantined", "absent"]
    engine.health.absent[:] = False
    assert engine.active.tolist() == [True, False, True, True]


def test_the_first_reason_stays_and_a_strict_run_stops_at_the_first_client() -> None:
    health = Health(4, {2: BROKEN_DATA})
    health.quarantine({2: broke_in(1, 0)}, strict=True)  # known already
    assert health.words == {2: "inputs or targets"}
    with pytest.raises(QuarantineError, match="client 1 has non-finite loss or model in round 3"):
        health.quarantine({3: broke_in(3, 0), 1: broke_in(3, 5)}, strict=True)


def test_codes_survive_the_words_of_a_record() -> None:
    for reason in (BROKEN_DATA, broke_in(0, 7), Reason("unknown", "before")):
        assert Reason.read(reason.words) == reason


def test_a_result_says_who_was_lost_for_what_reason(tmp_path: Path) -> None:
    federation = overflowing(poisoned(classification(), 1), 2)
    out = tmp_path / "run"
    result = scool.fit(federation, "linear", scool.LocalOnly(), rounds=2, device="cpu", out=out)
    assert (result.health.lost("data"), result.health.lost("training")) == ([1], [2])
    options: dict[str, Any] = {"rounds": 3, "device": "cpu", "out": out, "resume": True}
    again = scool.fit(federation, "linear", scool.LocalOnly(), **options)
    assert again.health.reasons == result.health.reasons


def test_every_round_begins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    monkeypatch.setattr(LocalEngine, "begin_round", lambda self, round: begun.append(round))
    scool.fit(classification(), "linear", scool.LocalOnly(), rounds=3, device="cpu")
    assert begun == [0, 1, 2]
