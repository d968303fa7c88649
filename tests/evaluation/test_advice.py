"""What an owner is told about cooperating."""

import torch

from scool.evaluation.advice import advice

ROW = {
    "tracks": {
        "alone": [0.02, 0.9, 0.25],
        "body": [0.68, 0.1, 0.5],
        "common": [0.3, 0.0, 0.25],
    },
    "held_out": {
        "alone": [80.0, 90.0, None],
        "body": [86.0, 89.5, None],
        "common": [70.0, 50.0, None],
    },
}
GRAPH = torch.tensor([[0.1, 0.8, 0.1], [0.0, 1.0, 0.0], [0.3, 0.3, 0.4]])


def test_each_owner_is_told_what_pays() -> None:
    found = advice([ROW, {"round": 1}], GRAPH, ["Bern", "Genf", "Uri"])
    assert found == [
        "Bern gains from others: 68% a shared body, 30% one model for all. On its held-out "
        "samples, against learning alone: a shared body +6.0 points, one model for all "
        "-10.0 points. It learns most from Genf (0.80).",
        "Genf learns mostly alone: 90% learning alone, 10% a shared body. On its held-out "
        "samples, against learning alone: a shared body -0.5 points, one model for all "
        "-40.0 points.",
        "Uri gains from others: 50% a shared body, 25% learning alone, 25% one model for all. It "
        "was never judged itself and does what suits the others.",
    ]


def test_errors_of_regression_are_compared_by_their_share() -> None:
    row = {
        "tracks": {"alone": [0.5], "graph": [0.5]},
        "held_out": {"alone": [-4.0], "graph": [-3.0]},
    }
    found = advice([row], None, None)
    assert found is not None and "client 0 gains from others" in found[0]
    assert "the graph -25 % error" in found[0]
    broken = {**row, "held_out": {"alone": [-1e-6], "graph": [-1e30]}}
    assert "the graph many times the error" in (advice([broken], None, None) or [""])[0]


def test_an_owner_whose_own_samples_speak_against_it_is_told_so() -> None:
    row = {
        "tracks": {"alone": [0.0], "graph": [0.2], "common": [0.8]},
        "held_out": {"alone": [80.0], "graph": [79.0], "common": [60.0]},
    }
    (words,) = advice([row], None, ["Bern"]) or []
    assert words.startswith("Bern learns from others, since that suits most owners: 80% one model")


def test_other_methods_tell_nothing() -> None:
    assert advice([{"round": 0}], GRAPH, None) is None
