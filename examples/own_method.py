"""Your own method beside those of the library: same clients, first models and batches."""

from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch

import scool
from scool.contracts import Engine
from scool.randomness import generator
from scool.types import Info, Params, Tree


class PairsState(NamedTuple):
    theta: Tree


@final
@dataclass(frozen=True)
class RandomPairs:
    """In every round clients meet in random pairs and average their models."""

    sgd: scool.LocalSGD = field(default_factory=scool.LocalSGD)
    share: float = 0.5
    """How much of the partner's model a client takes."""

    def init(self, engine: Engine, theta0: Params) -> PairsState:
        return PairsState(engine.replicate(theta0))

    def step(self, engine: Engine, state: PairsState, round: int) -> tuple[PairsState, Info]:
        half, loss = engine.train(state.theta, self.sgd, round)
        k = engine.num_clients
        order = torch.randperm(k, generator=generator(engine.seed, "pairs", round))
        left, right = order[: k // 2], order[k // 2 : 2 * (k // 2)]
        partner = torch.arange(k)
        partner[left], partner[right] = right, left
        eye = torch.eye(k, dtype=torch.float64)
        w = (1 - self.share) * eye + self.share * eye[partner]
        return PairsState(engine.mix(w, half)), {"train_loss": loss, "graph": w}


METHODS = {"pairs": RandomPairs()}  # for `scool compare --plugin examples/own_method.py`

if __name__ == "__main__":
    sgd = scool.LocalSGD(lr=0.2, batch_size=8)
    mine = {"pairs": RandomPairs(sgd), "pairs, a little": RandomPairs(sgd, share=0.1)}
    print(
        scool.compare(
            lambda seed: scool.digits(num_clients=12, groups=3, seed=seed),
            "mlp",
            ["local", mine, "scool-sbm"],
            seeds=2,
            sgd=sgd,
            rounds=6,
        )
    )
