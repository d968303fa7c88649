"""Models of others on the data of this peer."""

from collections.abc import Mapping
from typing import final

import torch

from scool.contracts import Split
from scool.data.federation import Federation
from scool.engine.ledger import PairList
from scool.engine.local import LocalEngine
from scool.engine.scoring import Drawn, suits_dense
from scool.engine.steps.phases import Samples
from scool.learning.losses import CrossDraw
from scool.peer.data import PARTS
from scool.types import Params


@final
class Trials:
    """The losses of other models on the own data.

    Where nobody may be missing (`is_exact`), models and samples go through the network in calls of
    the shapes that one process with all clients has, zeros in the places of what is not here: the
    last bits depend on the shapes. It costs the work of that process. Else only what is here.
    """

    def __init__(
        self, stack: LocalEngine, federation: Federation, place: int, is_exact: bool
    ) -> None:
        self._stack, self._place, self._is_exact = stack, place, is_exact
        self._clients = federation.num_clients
        self._padded = {
            name: Samples(getattr(federation, name), federation.transform, stack.dtype)
            for name in PARTS
        }

    def __call__(
        self,
        models: Mapping[int, Params],
        edges: PairList,
        draw: CrossDraw,
        round: int,
        split: Split,
    ) -> dict[int, float]:
        """The loss of each model here; `edges` are the pairs that are tried anywhere."""
        if not models:
            return {}
        k, stack = self._clients, self._stack
        ids = list(range(k)) if self._is_exact else sorted(models)
        like = next(iter(models.values()))
        nobody = {name: torch.zeros_like(t) for name, t in like.items()}
        tree = {
            name: torch.stack([models.get(i, nobody)[name] for i in ids]).to(stack.device)
            for name in like
        }
        readers = torch.tensor(ids, device=stack.device)
        is_dense = suits_dense(edges, k, draw)
        if self._is_exact:
            drawn = Drawn(self._padded[split], draw, k, round, stack.seed, readers)
            losses = stack.try_models(tree, readers, edges, drawn, is_dense)
            here = edges.j == self._place
            pairs = zip(edges.i[here].tolist(), losses[here].tolist(), strict=True)
            return {i: loss for i, loss in pairs if i in models}
        drawn = Drawn(stack.splits[split], draw, k, round, stack.seed, stack.ids)
        tried = PairList(torch.arange(len(ids)), torch.zeros(len(ids), dtype=torch.int64))
        losses = stack.try_models(tree, readers, tried, drawn, is_dense)
        return dict(zip(ids, losses.tolist(), strict=True))
