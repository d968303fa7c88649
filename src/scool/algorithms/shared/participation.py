"""Who takes part in a round."""

import torch
from torch import Tensor

from scool.contracts import Engine
from scool.errors import require
from scool.randomness import generator


def check_participation(participation: float) -> None:
    """Refuse a share of which nobody is left."""
    good = 0 < participation <= 1
    require(good, "participation", participation, "give a fraction in (0, 1]; 1 is everyone")


def participants(engine: Engine, participation: float, round: int) -> Tensor:
    """(K,) bool: a random set of the clients, one at least, a function of the seed and round."""
    count = max(1, int(engine.num_clients * participation + 1e-9))
    rng = generator(engine.seed, "participants", round)
    order = torch.randperm(engine.num_clients, generator=rng)
    chosen = torch.zeros(engine.num_clients, dtype=torch.bool)
    chosen[order[:count]] = True
    return chosen


def shares(engine: Engine, chosen: Tensor) -> Tensor | None:
    r"""(K,) $n_i / \sum_A n$ of the participants, 0 of the others; None where all participants
    are in quarantine."""
    share = engine.sizes.double() * (chosen & engine.active)
    return share / share.sum() if bool(share.any()) else None
