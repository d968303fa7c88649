"""The engine of one client on a machine of its own. The others are reached by `post`.

A method runs on it unchanged. In a strict run all peers take part in every round, and the numbers
are those of `LocalEngine` with all clients, to the bit on the same kind of CPU: the same draws, the
same padding, products of the same shapes.
"""

import hashlib
from collections.abc import Collection, Mapping
from typing import Any, NoReturn, final

import torch
from torch import Tensor, nn

from scool.contracts import MatrixT, PerClient, PerSample, Split, Trained
from scool.data.federation import Federation
from scool.engine.common import CommonVerbs, Compare, mixer
from scool.engine.ledger import PairList
from scool.engine.local import LocalEngine
from scool.engine.ranks.placement import cut
from scool.engine.steps.formulation import Precision
from scool.errors import ConfigError
from scool.graph.edges import Edges
from scool.graph.mixing import edges_without
from scool.health import Reason
from scool.learning.local_sgd import Rule
from scool.learning.losses import CrossDraw
from scool.peer.data import About
from scool.peer.exchange import Exchange, single
from scool.peer.offered import VERBS
from scool.peer.post import Post
from scool.peer.trials import Trials
from scool.peer.view import View
from scool.peer.words import Members, losses_body, read_losses, with_older
from scool.types import Params, Tree


@final
class PeerEngine(CommonVerbs):
    """See `contracts.Engine` for what each verb promises."""

    offers = VERBS

    def __init__(
        self,
        federation: Federation,
        module: nn.Module,
        *,
        post: Post,
        view: View,
        members: Mapping[int, About],
        seed: int,
        device: str = "auto",
        client_chunk: int = 0,
        strict: bool = False,
        precision: Precision = "float32",
    ) -> None:
        """`federation` has K clients, of which only this one has samples (see `data.alone`);
        `members` is what each owner tells of its own; of those that are not among them yet, the
        others are asked when they come."""
        self._post, self._view, self._place = post, view, post.place
        super().__init__(federation, seed, strict)
        mine = torch.tensor([self._place])
        self._stack = LocalEngine(
            cut(federation, mine),
            module,
            seed=seed,
            device=device,
            client_chunk=client_chunk,
            precision=precision,
            ids=mine,
        )
        self.device, self.dtype = self._stack.device, self._stack.dtype
        self.norms = self._stack.norms
        self.owned = mine.to(self.device)
        self._members = Members(members, federation.num_clients)
        self._count_samples()
        self._trials = Trials(self._stack, federation, self._place, view.is_strict)
        self._exchange = Exchange(post, view, self.health, strict)
        self._alike: list[bytes] = []  # of this round, what all peers must hold alike
        self._is_private = False  # the losses of this call stay here
        self._is_alone = False  # the method weighs by losses that stay here
        self._learn_health()

    @property
    def uniform_log_lik(self) -> float:
        if self.federation.task == "classification":
            return super().uniform_log_lik
        return -0.5 * self._members.variance(self.active)

    # ------------------------------------------------------------------ who is there

    def begin_round(self, round: int) -> None:
        digest = hashlib.sha256(b"".join(self._alike)).hexdigest()[:32] if self._alike else ""
        self._alike = []
        self._exchange.begin(round)
        absent = self._view.begin(round, digest)
        self.health.absent = torch.ones(self.num_clients, dtype=torch.bool)  # places without owner
        self.health.absent[: len(absent)] = absent
        if strangers := self._members.unknown(self._others):
            silent = self._members.ask(strangers, self._post, self._view.until)
            self.health.absent[silent] = True
            self._count_samples()

    def _count_samples(self) -> None:
        self.sizes, self.val_sizes = self._members.sizes("train"), self._members.sizes("val")

    def quarantine(self, reasons: Mapping[int, Reason]) -> None:
        self.health.quarantine(reasons)
        if self._place in reasons:
            self._stack.quarantine({0: reasons[self._place]})

    def _learn_health(self) -> None:
        if why := self._stack.health.reasons.get(0):
            self.health.quarantine({self._place: why}, self.strict)

    @property
    def _others(self) -> list[int]:
        """The peers that take part besides this one."""
        return [i for i in self.active.nonzero()[:, 0].tolist() if i != self._place]

    # ------------------------------------------------------------------ local learning

    def learn(
        self, theta: Tree, rule: Rule, anchor: Tree | None, round: int, chosen: Tensor
    ) -> Trained:
        found = self._stack.learn(theta, rule, anchor, round, chosen[[self._place]])
        self._learn_health()
        if self._view.is_strict:  # all must know who broke before they measure
            self._exchange.meet("train", {}, self._others, dict)
        return Trained(found.theta, self._whole(found.loss))

    def gradients(self, theta: Tree, split: Split) -> Trained:
        found = self._stack.gradients(theta, split)
        return Trained(found.theta, self._whole(found.loss))

    # ------------------------------------------------------------------ meeting others

    def peer_loss(
        self,
        theta: Tree,
        pairs: MatrixT,
        draw: CrossDraw,
        round: int,
        split: Split = "train",
    ) -> MatrixT:
        self._is_private = self._is_alone = True
        try:
            return super().peer_loss(theta, pairs, draw, round, split)
        finally:
            self._is_private = False

    def _losses(
        self, theta: Tree, edges: PairList, draw: CrossDraw, round: int, split: Split
    ) -> Tensor:
        """Each peer tries the models that ask for it on its own data, and tells the losses."""
        wants = frozenset(edges.j[edges.i == self._place].tolist())
        others = self._others
        here = set(edges.i[edges.j == self._place].tolist())
        ready = self._exchange.show("ready", theta, others, wants)
        asked = {i: peer for i, peer in ready.items() if self._place in peer.wants}
        if self._is_private:  # nobody asks: this peer looks at others
            asked = {i: peer for i, peer in ready.items() if i in here}
        models = self._exchange.pull(theta, asked)
        if self._place in here:
            models[self._place] = single(theta)
        found = self._trials(models, edges, draw, round, split)
        table = torch.full((self.num_clients, self.num_clients), torch.nan, dtype=torch.float64)
        for i, loss in found.items():
            table[i, self._place] = loss
        if not self._is_private:
            for j, column in self._columns(found, edges, others).items():
                for i, loss in column.items():
                    table[i, j] = loss
        losses = table[edges.i, edges.j]
        if not self._is_private:
            if not self._view.is_strict:
                slot = f"{self._exchange.last_slot}-losses"
                losses = with_older(losses, edges, self._post, round, slot)
            self._agree_on(losses)
        return losses

    def _columns(
        self, found: Mapping[int, float], edges: PairList, others: Collection[int]
    ) -> dict[int, dict[int, float]]:
        """Tell what the models lose here, and hear what they lose elsewhere: [j][i]."""
        trying = set(edges.j.tolist()) & set(others)
        body = losses_body(dict(found))
        return self._exchange.meet("losses", body, sorted(trying), read_losses)

    def _mix(self, graph: Edges, tree: Tree, overwrite: bool) -> Tree:
        del overwrite  # the rows of others come from elsewhere
        active = self.active
        if not self._is_alone:
            self._agree_on(graph.values)
        row = graph.take((graph.i == self._place) & active[graph.j])
        sources = [j for j in row.j.tolist() if j != self._place]
        models = self._exchange.pull(tree, self._exchange.shown("mix", tree, sources))
        if not bool(active[self._place]):
            own = graph.loop_values()[self._place]
            return {n: t * own.to(t) for n, t in tree.items()}
        if len(models) < len(sources):  # the shares of who is missing go to the rest
            reached = torch.zeros_like(active)
            reached[[self._place, *models]] = True
            row = edges_without(row, reached)
            row = row.take(row.i == self._place)
        return self._sum(row, tree, models) if self._view.is_strict else _added(row, tree, models)

    def _sum(self, row: Edges, tree: Tree, models: Mapping[int, Params]) -> Tree:
        """The weighted sum, as the product of a K x K matrix whose other rows are 0: a product of
        one row may add in another order, and so give other bits."""
        k, place = self.num_clients, self._place
        mix = mixer(PairList(row.i, row.j), row.values, (k, k), self.device, self.dtype)
        return {
            name: mix(self._rows(name, t, models))[[place]].view_as(t) for name, t in tree.items()
        }

    def _rows(self, name: str, own: Tensor, models: Mapping[int, Params]) -> Tensor:
        """(K, D) a tensor of all clients, 0 where it is not here."""
        rows = own.new_zeros(self.num_clients, own[0].numel())
        rows[self._place] = own[0].flatten()
        for j, model in models.items():
            rows[j] = model[name].flatten().to(rows)
        return rows

    def _all_pairs(self, purpose: str, a: Tree, b: Tree, compare: Compare) -> Tensor:
        """Row of this peer: numbers for the models that came here in this round."""
        self._is_alone = True
        models = self._exchange.met(purpose, b, self._others)
        total = torch.zeros(
            self.num_clients, self.num_clients, device=self.device, dtype=self.dtype
        )
        for name, t in a.items():
            total += compare(self._rows(name, t, {}), self._rows(name, b[name], models))
        found = torch.full((self.num_clients, self.num_clients), torch.nan, dtype=torch.float64)
        known = [self._place, *models]
        found[self._place, known] = total[self._place, known].double().cpu()
        return found

    # ------------------------------------------------------------------ how good

    def measure(self, theta: Tree, split: Split, metric: PerSample) -> Tensor:
        return self._whole(self._stack.measure(theta, split, metric))

    def judge(self, theta: Tree, split: Split, metric: PerClient, count: int) -> Tensor:
        return self._whole(self._stack.judge(theta, split, metric, count))

    def _whole(self, row: Tensor) -> Tensor:
        """(1, ...) -> (K, ...), NaN for the others."""
        out = torch.full((self.num_clients, *row.shape[1:]), torch.nan, dtype=row.dtype)
        out[self._place] = row[0].cpu()
        return out

    def _agree_on(self, numbers: Tensor) -> None:
        """From now on the digest tells of these numbers, too."""
        self._alike.append(numbers.double().contiguous().numpy().tobytes())

    # ------------------------------------------------------------------ what peers do not offer

    def _refuse(self, *args: Any, **named: Any) -> NoReturn:
        raise ConfigError("peers do not offer this verb; docs/peers.md says which ones they do")

    _visit = mixed_gradients = _rows_of_all = _sum_of_all = _refuse


def _added(row: Edges, tree: Tree, models: Mapping[int, Params]) -> Tree:
    """The weighted sum of the own model and those of others."""
    weights = row.values.tolist()
    out: Tree = {}
    for name, t in tree.items():
        out[name] = torch.zeros_like(t)
        for j, weight in zip(row.j.tolist(), weights, strict=True):
            out[name].add_(models[j][name].to(t) if j in models else t, alpha=weight)
    return out
