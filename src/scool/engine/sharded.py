"""The engine of several processes: every rank holds some of the clients as one stack.

The K x K matrices are whole and equal on all ranks, so both ends of every transfer know the plan
and nothing is negotiated. Models travel from rank to rank, data never do.
"""

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from scool.contracts import PerClient, PerSample, Trained
from scool.contracts import Split as SplitName
from scool.data.federation import Federation
from scool.engine.common import CommonVerbs, Compare, mixer
from scool.engine.ledger import (
    PairList,
    edges_of,
    to_matrix,
)
from scool.engine.local import LocalEngine
from scool.engine.ranks.exchange import Exchange, take_rows
from scool.engine.ranks.group import Ranks
from scool.engine.ranks.placement import Placement, better_placement, cut, rank_device
from scool.engine.scoring import Drawn, suits_dense
from scool.engine.steps.formulation import Precision
from scool.graph.edges import Edges, Matrix
from scool.health import Attendance, Reason
from scool.learning.local_sgd import LocalSGD, Rule
from scool.learning.losses import CrossDraw, Objective
from scool.models.stack import flat
from scool.types import Tree

SETTLED = 10  # rounds between two moves of clients from rank to rank


@final
class ShardedEngine(CommonVerbs):
    """Holds the clients of one rank. See `contracts.Engine` for what each verb promises."""

    def __init__(
        self,
        federation: Federation,
        module: nn.Module,
        *,
        seed: int,
        ranks: Ranks,
        device: str = "auto",
        client_chunk: int = 0,
        strict: bool = False,
        precision: Precision = "float32",
        placement: Placement | None = None,
        attendance: Attendance | None = None,
        objective: Objective | None = None,
    ) -> None:
        super().__init__(federation, seed, strict, attendance, objective)
        self.ranks = ranks
        self._options: dict[str, Any] = {
            "module": module,
            "seed": seed,
            "device": rank_device(device, ranks.rank),
            "client_chunk": client_chunk,
            "precision": precision,
            "attendance": self.attendance,
            "objective": self.objective,
        }
        self._round, self._moved = 0, -SETTLED  # this round; after which clients changed ranks
        self._hold(placement or Placement.even(self.num_clients, ranks.size))
        self.device, self.dtype = self._stack.device, self._stack.dtype
        self.norms = self._stack.norms
        self._share_quarantine()

    def _hold(self, placement: Placement) -> None:
        """Hold the clients that a placement gives to this rank."""
        self.placement = placement
        self._exchange = Exchange(self.ranks, placement)
        self._views.clear()  # their clients are elsewhere
        self._mine = placement.held[self.ranks.rank]  # (n,) ids, on the CPU
        shard = cut(self.federation, self._mine)
        self._stack = LocalEngine(shard, ids=self._mine, **self._options)
        self.owned = self._mine.to(self._stack.device)
        self.quarantine(self.health.reasons)

    def _seen_as(self, module: nn.Module | None, federation: Federation) -> "ShardedEngine":
        options = self._options if module is None else {**self._options, "module": module}
        here = {"ranks": self.ranks, "placement": self.placement, "strict": self.strict}
        return ShardedEngine(federation, **options, **here)

    def move(self, placement: Placement, tree: Tree) -> Tree:
        """Hold other clients from now on; the rows of a tree go with them."""
        placed = torch.arange(self.ranks.size)[:, None] == placement.holder  # (ranks, K)
        count = placement.counts[self.ranks.rank]
        out = {name: t.new_empty(count, *t.shape[1:]) for name, t in tree.items()}
        for ids, rows in self._exchange.visits("move", tree, placed):
            stay = placed[self.ranks.rank, ids].nonzero()[:, 0]
            to = placement.position[ids[stay]].to(self.device)
            for name, t in take_rows(rows, stay).items():
                out[name][to] = t
        self._hold(placement)
        return out

    def begin_round(self, round: int) -> None:
        super().begin_round(round)
        self._stack.health.absent = self.health.absent[self._mine]
        self._round = round

    def settle(self, graph: Matrix, tree: Tree) -> Tree:
        done = self._round + 1
        if done - self._moved < SETTLED:
            return tree
        placement = better_placement(self.placement, graph)
        if placement is None:
            return tree
        self._moved = done
        return self.move(placement, tree)

    def layout(self) -> Mapping[str, Tensor]:
        return {"holder": self.placement.holder, "moved": torch.tensor(self._moved)}

    def restore(self, layout: Mapping[str, Tensor]) -> None:
        even = Placement.even(self.num_clients, self.ranks.size)
        placement, self._moved = even, -SETTLED
        holder = layout.get("holder")
        if holder is not None and int(holder.max()) + 1 == self.ranks.size:
            found = Placement(holder, self.ranks.size)
            if found.counts == even.counts:
                placement, self._moved = found, int(layout.get("moved", torch.tensor(-SETTLED)))
        if not torch.equal(placement.holder, self.placement.holder):
            self._hold(placement)

    def quarantine(self, reasons: Mapping[int, Reason]) -> None:
        self.health.quarantine(reasons)
        rows = dict(zip(self._mine.tolist(), range(len(self._mine)), strict=True))
        self._stack.quarantine({rows[i]: why for i, why in reasons.items() if i in rows})

    # ------------------------------------------------------------------ local learning

    def learn(
        self, theta: Tree, rule: Rule, anchor: Tree | None, round: int, chosen: Tensor
    ) -> Trained:
        found = self._stack.learn(theta, rule, anchor, round, chosen[self._mine])
        self._share_quarantine()
        return Trained(found.theta, self._exchange.rows(found.loss))

    def _visit(
        self, theta: Tree, asked: PairList, edges: PairList, sgd: LocalSGD, round: int
    ) -> Trained:
        mine = asked.take(self._is_here(asked.i))
        out = {n: t[self.placement.position[mine.i].to(t.device)] for n, t in theta.items()}
        place = to_matrix(mine, torch.arange(len(mine.i)).double(), self.num_clients)
        loss = torch.full_like(place, torch.nan)

        def work(ids: Tensor, models: Tree) -> Tree:
            visits = PairList(torch.arange(len(ids)), self.placement.position[hosts[ids]])
            trained, loss[ids, hosts[ids]] = self._stack.steps_at(models, visits, sgd, round)
            return trained

        for hosts in edges.in_turn(self.num_clients):  # few guests at a time
            holder = self.placement.holder[hosts.clamp(min=0)]
            wanted = (holder == torch.arange(self.ranks.size)[:, None]) & (hosts >= 0)
            for rows, trained in self._exchange.errands("train_at", theta, wanted, work):
                ids = self._mine[rows.cpu()]
                to = place[ids, hosts[ids]].long().to(self.device)
                for name, stacked in trained.items():
                    out[name][to] = stacked
        here = edges.take(self._is_here(edges.j))
        means = self._exchange.of_edges(loss[here.i, here.j], edges)
        return Trained(out, means)

    def gradients(self, theta: Tree, split: SplitName) -> Trained:
        found = self._stack.gradients(theta, split)
        return Trained(found.theta, self._exchange.rows(found.loss))

    # ------------------------------------------------------------------ meeting others

    def _mix(self, graph: Edges, tree: Tree, overwrite: bool) -> Tree:
        del overwrite  # the rows travel while they are summed
        active = self.active
        edges = graph.take(active[graph.j])  # 0 times infinity is NaN: the quarantined stay out
        wanted = self.placement.wanted(edges.i, edges.j)
        edges = edges.take(self._is_here(edges.i))
        share, rows = edges.values, self.placement.position[edges.i]
        out: Tree = {}
        for ids, models in self._exchange.visits("mix", tree, wanted):
            column = self._column(ids)[edges.j]
            here = column >= 0
            shape = (len(self._mine), len(ids))
            few = PairList(rows[here], column[here])
            mix = mixer(few, share[here], shape, self.device, self.dtype)
            idle = (~active[ids]).to(self.device)
            for name, t in models.items():
                if bool(idle.any()):
                    t = t.masked_fill(idle.view(-1, *[1] * (t.dim() - 1)), 0.0)
                part = mix(flat(t))
                out[name] = part.add_(out[name]) if name in out else part
        own = graph.loop_values()[self._mine].to(self.device, self.dtype)
        idle = (~active[self._mine]).to(self.device) & (own != 0)
        for name, t in tree.items():
            mixed, shape = out[name].view_as(t), (-1, *[1] * (t.dim() - 1))
            if bool(idle.any()):
                mixed = torch.where(idle.view(shape), t * own.view(shape), mixed)
            out[name] = mixed
        return out

    def _losses(
        self, theta: Tree, edges: PairList, draw: CrossDraw, round: int, split: SplitName
    ) -> Tensor:
        """The models travel to the data."""
        samples = self._stack.splits[split]
        drawn = Drawn(samples, draw, self.num_clients, round, self.seed, self.owned)
        is_dense = suits_dense(edges, self.num_clients, draw)
        wanted = self.placement.wanted(edges.j, edges.i)
        mine = edges.take(self._is_here(edges.j))
        samples_of = self.placement.position[mine.j]
        losses = torch.empty(len(mine.i), dtype=torch.float64)
        for ids, models in self._exchange.visits("cross_models", theta, wanted):
            row = self._column(ids)[mine.i]
            part = row >= 0
            chosen, row = row[part].unique(return_inverse=True)  # who is tried here at all
            if len(chosen):
                models, readers = take_rows(models, chosen), ids[chosen].to(self.device)
                tried = PairList(row, samples_of[part])
                losses[part] = self._stack.try_models(models, readers, tried, drawn, is_dense)
        return self._exchange.of_edges(losses, edges)

    def mixed_gradients(
        self, theta: Tree, w: Tensor, sgd: LocalSGD, round: int
    ) -> tuple[Tree, int]:
        edges = edges_of(w)
        samples = 0
        out = {name: torch.zeros_like(t) for name, t in theta.items()}

        def work(ids: Tensor, models: Tree) -> Tree:
            nonlocal samples
            weights = w[ids][:, self._mine]
            gradients, taken = self._stack.mixed_gradients(models, weights, sgd, round)
            samples += taken
            return gradients

        wanted = self.placement.wanted(edges.j, edges.i)
        for rows, gradients in self._exchange.errands("cross_gradients", theta, wanted, work):
            for name, g in gradients.items():
                out[name][rows] += g
        return out, int(self.ranks.total(torch.tensor([samples]))[0])

    def _rows_of_all(self, rows: Tensor) -> Tensor:
        return self._exchange.rows(rows)

    def _sum_of_all(self, x: Tensor) -> Tensor:
        return self.ranks.total(x)

    # ------------------------------------------------------------------ how good

    def measure(self, theta: Tree, split: SplitName, metric: PerSample) -> Tensor:
        return self._exchange.rows(self._stack.measure(theta, split, metric))

    def judge(self, theta: Tree, split: SplitName, metric: PerClient, count: int) -> Tensor:
        return self._exchange.rows(self._stack.judge(theta, split, metric, count))

    def collect(self, tree: Tree) -> Tree:
        """All K rows on the first rank, in the memory of its CPU; elsewhere the rows held there."""
        wanted = torch.zeros(self.ranks.size, self.num_clients, dtype=torch.bool)
        wanted[0] = True
        if not self.ranks.is_first:
            for _ in self._exchange.visits("collect", tree, wanted):
                pass
            return {name: t.cpu() for name, t in tree.items()}
        whole = {
            n: t.new_empty(self.num_clients, *t.shape[1:], device="cpu") for n, t in tree.items()
        }
        for ids, rows in self._exchange.visits("collect", tree, wanted):
            for name, t in rows.items():
                whole[name][ids] = t.cpu()
        return whole

    # ------------------------------------------------------------------ inside

    def _is_here(self, clients: Tensor) -> Tensor:
        """Which of these clients this rank holds."""
        return self.placement.holder[clients] == self.ranks.rank

    def _column(self, ids: Tensor) -> Tensor:
        """(K,) the place of each client among `ids`, -1 for the others."""
        out = torch.full((self.num_clients,), -1)
        out[ids] = torch.arange(len(ids))
        return out

    def _all_pairs(self, purpose: str, a: Tree, b: Tree, compare: Compare) -> Tensor:
        total = torch.zeros(len(self._mine), self.num_clients, device=self.device, dtype=self.dtype)
        everyone = torch.ones(self.ranks.size, self.num_clients, dtype=torch.bool)
        for ids, others in self._exchange.visits(purpose, b, everyone):
            columns = ids.to(self.device)
            for name, t in a.items():
                total[:, columns] += compare(flat(t), flat(others[name]))
        return self._exchange.rows(total.double().cpu())

    def _share_quarantine(self) -> None:
        """Tell the others who went into quarantine here, and hear who did elsewhere."""
        found = {int(self._mine[row]): why for row, why in self._stack.health.words.items()}
        found = {client: why for client, why in found.items() if client not in self.health.reasons}
        counts = self.ranks.gather(torch.tensor([len(found)]), [1] * self.ranks.size)
        if not bool(counts.any()):
            return
        reasons: dict[int, Reason] = {}
        for part in self.ranks.share(found):
            reasons |= {int(client): Reason.read(why) for client, why in part.items()}
        self.health.quarantine(reasons, self.strict)
