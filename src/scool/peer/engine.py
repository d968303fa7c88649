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

from scool.contracts import MatrixT, PerClient, PerSample, Route, Split, Trained
from scool.data.build import without_validation
from scool.data.federation import Federation
from scool.engine.common import CommonVerbs, Compare
from scool.engine.ledger import PairList
from scool.engine.local import LocalEngine
from scool.engine.ranks.placement import cut
from scool.engine.steps.formulation import Precision
from scool.errors import ConfigError
from scool.graph.edges import Edges, Matrix
from scool.graph.mixing import edges_without
from scool.health import Reason
from scool.learning.local_sgd import Rule
from scool.learning.losses import CrossDraw
from scool.peer.data import PARTS, About, alone
from scool.peer.exchange import Exchange, single
from scool.peer.offered import VERBS
from scool.peer.post import Post
from scool.peer.sums import exact_sum, plain_sum, rows_of
from scool.peer.trials import Trials
from scool.peer.view import View
from scool.peer.words import Members, losses_body, read_losses, with_older
from scool.types import Tree


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
        members: Mapping[int, About] | Members,
        seed: int,
        device: str = "auto",
        client_chunk: int = 0,
        strict: bool = False,
        precision: Precision = "float32",
    ) -> None:
        """`federation` has K clients, of which only this one has samples (see `data.alone`);
        `members` is what each owner tells of its own; of those that are not among them yet, the
        others are asked when they come."""
        self._post, self._view, self._place, self._given = post, view, post.place, module
        self._options: dict[str, Any] = {"seed": seed, "device": device, "precision": precision}
        self._options["client_chunk"] = client_chunk
        super().__init__(federation, seed, strict)
        mine = torch.tensor([self._place])
        self._stack = LocalEngine(cut(federation, mine), module, ids=mine, **self._options)
        self.device, self.dtype = self._stack.device, self._stack.dtype
        self.norms = self._stack.norms
        self.owned = mine.to(self.device)
        is_new = not isinstance(members, Members)
        self._members = Members(members, federation.num_clients) if is_new else members
        self._count_samples()
        self._trials = Trials(self._stack, federation, self._place, view.is_strict)
        self._exchange = Exchange(post, view, self.health, strict)
        self._alike: list[bytes] = []  # of this round, what all peers must hold alike
        self._is_untold = False  # whether the training broke here is not told yet
        self._is_private = False  # the losses of this call stay here
        self._is_alone = False  # the method weighs by losses that stay here
        self._learn_health()

    def view(
        self, name: str, module: nn.Module | None = None, *, whole: bool = False
    ) -> "PeerEngine":
        if name in self._views:
            return self._views[name]
        found = super().view(name, module, whole=whole)
        found._exchange = Exchange(self._post, self._view, found.health, self.strict, name)
        found._exchange.begin(self._exchange.round)
        found._alike = self._alike
        return found

    def _seen_as(self, module: nn.Module | None, federation: Federation) -> "PeerEngine":
        is_joined = federation is not self.federation
        return PeerEngine(
            federation,
            module or self._given,
            post=self._post,
            view=self._view,
            members=self._members.joined() if is_joined else self._members,
            strict=self.strict,
            **self._options,
        )

    def _undivided(self) -> Federation:
        """Samples are padded as where all are together."""
        own = without_validation(cut(self.federation, self.owned.cpu()))
        widths = {part: int(self._members.joined().sizes(part).max()) for part in PARTS}
        names = self.federation.client_names or [""] * self.num_clients
        return alone(own, self._place, names, widths)

    @property
    def uniform_log_lik(self) -> float:
        if self.federation.task == "classification":
            return super().uniform_log_lik
        return -0.5 * self._members.variance(self.active)

    # ------------------------------------------------------------------ who is there

    def begin_round(self, round: int) -> None:
        self._tell_health()  # before the round is over
        digest = hashlib.sha256(b"".join(self._alike)).hexdigest()[:32] if self._alike else ""
        self._alike.clear()
        self._post.forget(round)
        for engine in (self, *self._views.values()):
            engine._exchange.begin(round)
        absent = self._view.begin(round, digest)
        self.health.absent = torch.ones(self.num_clients, dtype=torch.bool)  # places without owner
        self.health.absent[: len(absent)] = absent
        if strangers := self._members.unknown(self._others):
            silent = self._members.ask(strangers, self._post, self._view.until)
            self.health.absent[silent] = True
            for engine in (self, *self._views.values()):
                engine._count_samples()

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
    def active(self) -> Tensor:
        """Who takes part: in a strict run all must know who broke before they go on."""
        self._tell_health()
        return self.health.active

    def _tell_health(self) -> None:
        """Tell whether the training broke here, and hear whose did, where that is not known yet."""
        for engine in (*self._views.values(), self):
            if engine._is_untold:
                engine._is_untold = False
                engine._exchange.meet("train", {}, engine._others, dict)

    def _tell_with(self, verb: str, tree: Tree) -> None:
        """The same together with the model that others need next: one record for both."""
        if self._is_untold:
            self._is_untold = False
            self._exchange.show(verb, tree, self._others)

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
        self._is_untold = self._view.is_strict
        return Trained(found.theta, self._whole(found.loss))

    def gradients(self, theta: Tree, split: Split) -> Trained:
        found = self._stack.gradients(theta, split)
        return Trained(found.theta, self._whole(found.loss))

    # ------------------------------------------------------------------ meeting others

    def cross_loss(self, theta: Tree, pairs: MatrixT, draw: CrossDraw, round: int) -> MatrixT:
        self._tell_with("ready", theta)
        return super().cross_loss(theta, pairs, draw, round)

    def peer_loss(
        self,
        theta: Tree,
        pairs: MatrixT,
        draw: CrossDraw,
        round: int,
        split: Split = "train",
    ) -> MatrixT:
        self._tell_with("ready", theta)
        self._is_private = self._is_alone = True
        try:
            return super().peer_loss(theta, pairs, draw, round, split)
        finally:
            self._is_private = False

    def _losses(
        self, theta: Tree, edges: PairList, draw: CrossDraw, round: int, split: Split
    ) -> Tensor:
        """Each peer tries the models that ask for it on its own data, and tells the losses."""
        others = self._others
        here = set(edges.i[edges.j == self._place].tolist())
        if self._view.is_strict:  # all know the same pairs
            ready = self._exchange.shown("ready", theta, others)
            asked = {i: peer for i, peer in ready.items() if i in here}
        else:
            wants = frozenset(edges.j[edges.i == self._place].tolist())
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
                losses = with_older(losses, edges, self._post, round, self._exchange.last_slot)
            self._agree_on(losses)
        return losses

    def _columns(
        self, found: Mapping[int, float], edges: PairList, others: Collection[int]
    ) -> dict[int, dict[int, float]]:
        """Tell what the models lose here, and hear what they lose elsewhere: [j][i]."""
        trying = set(edges.j.tolist()) & set(others)
        body = losses_body(dict(found))
        return self._exchange.meet("losses", body, sorted(trying), self._read_losses)

    def _read_losses(self, body: Any) -> dict[int, float]:
        """What a peer tells of members that are known here: it may know more."""
        return {i: loss for i, loss in read_losses(body).items() if 0 <= i < self.num_clients}

    def mix(self, w: Matrix, tree: Tree, via: Route = "peers", overwrite: bool = False) -> Tree:
        """What a server would average for all each peer averages for itself."""
        self._tell_with("mix", tree)
        return super().mix(w, tree, "peers" if via == "server" else via, overwrite)

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
        if self._view.is_strict:
            return exact_sum(row, self._place, tree, models)
        return plain_sum(row, tree, models)

    def _rows_of_all(self, rows: Tensor) -> Tensor:
        """What every owner tells of itself; NaN for those who are not there, or say nothing."""
        mine = rows[0].cpu()
        out = mine.new_full((self.num_clients, *mine.shape), torch.nan)
        out[self._place] = mine
        for peer, row in self._exchange.tell(mine, self._others).items():
            out[peer] = row
        self._agree_on(out)
        return out

    def _all_pairs(self, purpose: str, a: Tree, b: Tree, compare: Compare) -> Tensor:
        """Row of this peer: numbers for the models that came here in this round."""
        self._is_alone = True
        models = self._exchange.met(purpose, b, self._others)
        k, place = self.num_clients, self._place
        total = torch.zeros(k, k, device=self.device, dtype=self.dtype)
        for name, t in a.items():
            mine = rows_of(name, t, place, k, {})
            total += compare(mine, rows_of(name, b[name], place, k, models))
        found = torch.full((k, k), torch.nan, dtype=torch.float64)
        known = [place, *models]
        found[place, known] = total[place, known].double().cpu()
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
        numbers = numbers.double()
        numbers = numbers.where(numbers.isfinite(), torch.nan)  # of which there are several
        self._alike.append(numbers.contiguous().numpy().tobytes())

    # ------------------------------------------------------------------ what peers do not offer

    def _refuse(self, *args: Any, **named: Any) -> NoReturn:
        raise ConfigError("peers do not offer this verb; docs/peers.md says which ones they do")

    _visit = mixed_gradients = _sum_of_all = _refuse
