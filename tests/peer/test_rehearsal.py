"""What an owner reads before it signs is what the audit of a run lists afterwards."""

import json
from pathlib import Path
from typing import Any

import pytest

from toys import classification

pytest.importorskip("cryptography", reason="pip install scool[peer]")

from peer.pilots import ADDRESSES, take_part
from scool.peer.audit import NAME, verify
from scool.peer.owner import open_owner
from scool.peer.pilot import Trial, make_pilot
from scool.peer.rehearsal import rehearse

ROUNDS = 4
OPTIONS: dict[str, dict[str, Any]] = {
    "scool": {},
    "scool-sbm": {"fraction": 1.0},
    "dpsgd": {"topology": "complete"},
    "fedavg": {},
    "fedper": {},
    "scaffold": {},
    "local": {},
}
MODELS = {"scool": 8, "scool-sbm": 2, "local": 0}  # one of the others


@pytest.mark.parametrize("method", OPTIONS)
def test_a_rehearsal_tells_what_leaves_in_a_round(method: str, tmp_path: Path) -> None:
    """In the first rounds, models of `scool` that began alike are still equal."""
    options = {"epochs": 1, "batch_size": 4} | OPTIONS[method]
    made = tmp_path / "pilot"
    make_pilot(made, ADDRESSES, Trial(method=method, rounds=ROUNDS), options, classification())
    owner = open_owner(made / "ann")
    told = rehearse(owner.agreement, owner.load(), owner.folder)
    take_part(made)
    assert told.models == MODELS.get(method, 1)
    for left in verify(made / "ann" / NAME).left.values():
        share = left.get("model", 0) / ROUNDS / max(1, told.model_bytes)
        assert share == (told.models > 0) or (method == "scool" and 0.85 < share < 1)
    lines = map(json.loads, (made / "ann" / NAME).read_text().splitlines())
    said = [line["bytes"] for line in lines if line.get("key", "").startswith("2/")]
    assert abs(told.other_bytes / sum(said) - 1) < 0.15  # numbers about two owners, not four


def test_equal_samples_in_one_batch_give_models_that_travel(tmp_path: Path) -> None:
    """Both members of the rehearsal would hold the same model, which nobody has to send."""
    options = {"epochs": 1, "batch_size": 64}
    make_pilot(tmp_path, ADDRESSES, Trial(method="fedavg"), options, classification())
    owner = open_owner(tmp_path / "ann")
    assert rehearse(owner.agreement, owner.load(), owner.folder).models == 1
