"""A first trial shows what it is for."""

from pathlib import Path

import numpy as np
import pytest

import scool
from scool.data.arrays import from_arrays

pytest.importorskip("cryptography", reason="pip install scool[peer]")

from scool.peer.join import train_alone
from scool.peer.owner import open_owner
from scool.peer.pilot import Trial, digits_for, make_pilot

ROUNDS = 10


@pytest.mark.parametrize("owners", range(2, 9))
def test_nobody_is_alone_in_a_group(owners: int) -> None:
    groups = digits_for(owners, 0).groups
    assert groups is not None and int(groups.bincount().min()) >= 2


def test_three_owners_all_gain_by_each_other(tmp_path: Path) -> None:
    """A strict trial has the numbers of one process with all clients."""
    addresses = {name: f"127.0.0.1:{7400 + i}" for i, name in enumerate(("ann", "bob", "cat"))}
    folders = make_pilot(tmp_path / "trial", addresses, Trial(rounds=ROUNDS))
    agreement = open_owner(folders[0]).agreement
    together = scool.fit(
        from_arrays([dict(np.load(folder / "data.npz")) for folder in folders], num_classes=10),
        agreement.builder(folders[0]),
        agreement.build_method(),
        rounds=ROUNDS,
        seed=agreement.seed,
        device="cpu",
    )
    for place, folder in enumerate(folders):
        alone = train_alone(folder, agreement, open_owner(folder).load(), ROUNDS)
        assert together.history[-1]["scores"][place] > alone[-1] + 3
