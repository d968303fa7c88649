"""The in-process engine: all K clients on one device, trained as one stack."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor, nn

from scool.contracts import PerClient, PerSample, Split, Trained
from scool.data.federation import Federation
from scool.engine.common import CommonVerbs, Compare, mix_tensor, mixer
from scool.engine.ledger import PairList
from scool.engine.machine import (
    Capacity,
    clients_at_once,
    resolve_device,
    samples_at_once,
    tensor_cores,
)
from scool.engine.scoring import (
    Drawn,
    client_metric,
    dense_losses,
    mean_gradient,
    mean_metric,
    mixed_gradients,
    sparse_losses,
    suits_dense,
)
from scool.engine.steps.formulation import Formulation, Precision
from scool.engine.steps.phases import (
    Outcome,
    Samples,
    batch_at,
    dropout_streams,
    examine,
    plan_phase,
)
from scool.graph.edges import Edges
from scool.health import BROKEN_DATA, Attendance, broke_in
from scool.learning.local_sgd import LocalSGD, Rule
from scool.learning.losses import CrossDraw, Objective
from scool.models.layers import norm_names, with_client_norms, with_streams
from scool.models.stack import flat
from scool.types import Tree


def _rows(tree: Tree, ids: Tensor) -> Tree:
    return {name: stacked[ids] for name, stacked in tree.items()}


@final
class LocalEngine(CommonVerbs):
    """Holds all clients. See `contracts.Engine` for what each verb promises."""

    def __init__(
        self,
        federation: Federation,
        module: nn.Module,
        *,
        seed: int,
        device: str = "auto",
        client_chunk: int = 0,
        strict: bool = False,
        precision: Precision = "float32",
        ids: Tensor | None = None,
        attendance: Attendance | None = None,
        objective: Objective | None = None,
    ) -> None:
        """`ids` (K,) are the ids of the clients in random streams, if they are part of a larger
        federation."""
        self.device = resolve_device(device)
        super().__init__(federation.to(self.device), seed, strict, attendance, objective)
        self._given = module
        self._options: dict[str, Any] = {
            "seed": seed,
            "device": device,
            "client_chunk": client_chunk,
            "strict": strict,
            "precision": precision,
            "ids": ids,
            "attendance": attendance,
            "objective": objective,
        }
        module = copy.deepcopy(module)  # the caller's module stays unchanged
        self.norms = norm_names(module)
        module = with_streams(with_client_norms(module))
        module = module.to(self.device).eval()
        self.dtype = next(module.parameters()).dtype
        self._formulation = Formulation(module, self.loss, self.device, precision)
        self.model = self._formulation.model
        self.owned = torch.arange(self.num_clients, device=self.device)
        self.ids = self.owned if ids is None else ids.to(self.device)
        weights = self.objective.weights(self.federation)
        self.splits = {
            name: Samples(getattr(self.federation, name), federation.transform, self.dtype, weights)
            for name in ("train", "val", "test")
        }
        self._capacity = Capacity(
            client_chunk or clients_at_once(module, federation, self.device),
            samples_at_once(module, federation, self.device, self._formulation.activations),
            free=self._formulation.forget,
        )
        whole = self.federation.train.is_finite() & self.federation.val.is_finite()
        broken = (~whole).nonzero()[:, 0].tolist()
        self.health.quarantine(dict.fromkeys(broken, BROKEN_DATA), strict)

    def _seen_as(self, module: nn.Module | None, federation: Federation) -> "LocalEngine":
        return LocalEngine(federation, module or self._given, **self._options)

    # ------------------------------------------------------------------ local learning

    def learn(
        self, theta: Tree, rule: Rule, anchor: Tree | None, round: int, chosen: Tensor
    ) -> Trained:
        loss = torch.full((self.num_clients,), torch.nan, dtype=torch.float64)
        out: Tree = {}

        def work(ids: Tensor) -> None:
            nonlocal out
            is_whole = len(ids) == self.num_clients
            mine = self._some(theta, ids)
            to = None if anchor is None else self._some(anchor, ids)
            trained, mean, stop = self._run(mine, ids, rule, to, round)
            good = stop < 0
            loss[ids.cpu()] = mean.where(good, torch.nan)
            if is_whole and bool(good.all()):
                out = trained
                return
            out = out or {name: stacked.clone() for name, stacked in theta.items()}
            finite = good.to(self.device)
            for name, stacked in trained.items():
                out[name][ids[finite]] = stacked[finite]
            for client, step in zip(ids[~finite].tolist(), stop[~good].tolist(), strict=True):
                self.health.quarantine({client: broke_in(round, step)}, self.strict)

        self._capacity.each(chosen.nonzero()[:, 0].to(self.device), work)
        return Trained(out or dict(theta), loss)

    def _visit(
        self, theta: Tree, asked: PairList, edges: PairList, sgd: LocalSGD, round: int
    ) -> Trained:
        trained, means = self.steps_at(theta, edges, sgd, round)
        if len(edges.i) == len(asked.i):
            return Trained(trained, means)
        works = (self.active[asked.i] & self.active[asked.j]).to(self.device)
        out = _rows(theta, asked.i.to(self.device))
        for name, stacked in trained.items():
            out[name][works] = stacked
        return Trained(out, means)

    def steps_at(
        self, models: Tree, edges: PairList, sgd: LocalSGD, round: int
    ) -> tuple[Tree, Tensor]:
        """Model i after the steps of the client in row j, for each edge: (E, ...), and the losses
        (E,), NaN where a number is not finite. The rows are lent."""
        rule = Rule(sgd.at_round(round))
        visitors, hosts = edges.i.to(self.device), edges.j.to(self.device)
        loss = torch.full((len(hosts),), torch.nan, dtype=torch.float64)
        out: Tree = {}

        def work(some: Tensor) -> None:
            nonlocal out
            found = self._run(models, hosts[some], rule, None, round, visitors[some])
            loss[some.cpu()] = found.loss.where(found.stop < 0, torch.nan)
            if len(some) == len(hosts):
                out = found.theta
                return
            out = out or {n: t.new_empty(len(hosts), *t.shape[1:]) for n, t in models.items()}
            for name, stacked in found.theta.items():
                out[name][some] = stacked

        self._capacity.each(torch.arange(len(hosts), device=self.device), work)
        return out or _rows(models, visitors), loss

    def _run(
        self,
        theta: Tree,
        hosts: Tensor,
        rule: Rule,
        anchor: Tree | None,
        round: int,
        start: Tensor | None = None,
    ) -> Outcome:
        """The local steps of c models, or of rows `start` (c,) of a stack, each on the data of its
        host (c,)."""
        train, names = self.splits["train"], self.ids[hosts]
        pace = self.attendance.pace(round, names)
        if pace.factors is not None and len(pace.factors.unique()) > 1:
            return self._run_by_rates(theta, hosts, rule, anchor, round, start, pace.factors)
        if pace.factors is not None and len(hosts):
            sgd = replace(rule.sgd, lr=rule.sgd.lr * float(pace.factors[0]))
            rule = rule._replace(sgd=sgd)
        phase = plan_phase(train, rule.sgd, hosts, names, round, self.seed)._replace(start=start)
        if pace.share is not None:
            phase = phase.shortened(pace.share)
        if self._formulation.may_draw:
            phase = phase._replace(stream=dropout_streams(names, round, self.seed))
        return examine(phase, *self._formulation.train(train, theta, phase, rule, anchor))

    def _run_by_rates(
        self,
        theta: Tree,
        hosts: Tensor,
        rule: Rule,
        anchor: Tree | None,
        round: int,
        start: Tensor | None,
        factors: Tensor,
    ) -> Outcome:
        """The same where the learning rates of the hosts differ: those with the same rate at a
        time."""
        out = {n: t.new_empty(len(hosts), *t.shape[1:]) for n, t in theta.items()}
        loss = torch.full((len(hosts),), torch.nan, dtype=torch.float64)
        stop = torch.full((len(hosts),), -1)
        for factor in factors.unique():
            at = (factors == factor).nonzero()[:, 0]
            some = at.to(self.device)
            mine = theta if start is not None else _rows(theta, some)
            to = None if anchor is None else _rows(anchor, some)
            begin = None if start is None else start[some]
            found = self._run(mine, hosts[some], rule, to, round, begin)
            loss[at], stop[at] = found.loss, found.stop
            for name, t in found.theta.items():
                out[name][some] = t
        return Outcome(out, loss, stop)

    # ------------------------------------------------------------------ meeting others

    def _mix(self, graph: Edges, tree: Tree, overwrite: bool) -> Tree:
        active, edges = self.active, PairList(graph.i, graph.j)
        mix = mixer(edges, graph.values, (len(graph), len(graph)), self.device, self.dtype)
        if bool(active.all()):
            return {name: mix_tensor(mix, t, overwrite) for name, t in tree.items()}
        own = graph.loop_values().to(self.device, self.dtype)
        out: Tree = {}
        for name, t in tree.items():  # 0 times infinity is NaN: keep the quarantined out of sums
            shape = (-1, *[1] * (t.dim() - 1))
            idle = (~active).to(self.device)
            mixed = mix_tensor(mix, t.masked_fill(idle.view(shape), 0.0), overwrite=True)
            alone = idle & (own != 0)
            out[name] = torch.where(alone.view(shape), t * own.view(shape), mixed)
        return out

    def _losses(
        self, theta: Tree, edges: PairList, draw: CrossDraw, round: int, split: Split
    ) -> Tensor:
        drawn = Drawn(self.splits[split], draw, self.num_clients, round, self.seed, self.ids)
        is_dense = suits_dense(edges, self.num_clients, draw)
        return self.try_models(theta, self.owned, edges, drawn, is_dense)

    @torch.no_grad()
    def try_models(
        self, theta: Tree, readers: Tensor, edges: PairList, drawn: Drawn, is_dense: bool
    ) -> Tensor:
        """(E,) losses of the models of clients `readers` (m,): model i on the draw of row j."""

        def work() -> Tensor:
            rows = self._capacity.rows
            if is_dense:
                losses = dense_losses(self._formulation, theta, drawn, rows)
                return losses.cpu()[edges.i, edges.j]
            return sparse_losses(self._formulation, theta, readers, edges, drawn, rows)

        if not len(edges.i):
            return torch.zeros(0, dtype=torch.float64)
        with tensor_cores():
            return self._capacity.fit(work).cpu().double()

    def mixed_gradients(
        self, theta: Tree, w: Tensor, sgd: LocalSGD, round: int
    ) -> tuple[Tree, int]:
        """Of m models, w (m, K), on the first batch of every client."""
        phase = plan_phase(self.splits["train"], sgd, self.owned, self.ids, round, self.seed)
        first = torch.zeros(1, dtype=torch.int64, device=self.device)
        batch = batch_at(self.splits["train"], phase, first)
        idle = (~self.active).to(self.device)  # 0 times NaN is NaN: blank what may not be finite
        x, y = (t.masked_fill(idle.view(-1, *[1] * (t.dim() - 1)), 0) for t in batch[:2])
        batch = batch._replace(x=x, y=y)
        weights = w.to(self.device, self.dtype)

        def work() -> Tree:
            models = self._capacity.clients
            return mixed_gradients(self.model, self.loss, theta, batch, weights, models)

        samples = int((w != 0).double().sum(dim=0) @ batch.weight.sum(dim=1).double().cpu())
        return self._capacity.fit(work, len(w)), samples

    def _all_pairs(self, purpose: str, a: Tree, b: Tree, compare: Compare) -> Tensor:
        del purpose  # no traffic
        total = torch.zeros(
            self.num_clients, self.num_clients, device=self.device, dtype=self.dtype
        )
        for name, t in a.items():
            total += compare(flat(t), flat(b[name]))
        return total.double().cpu()

    def gradients(self, theta: Tree, split: Split) -> Trained:
        source = self.splits[split]
        loss = torch.full((self.num_clients,), torch.nan, dtype=torch.float64)
        out = {name: torch.zeros_like(t) for name, t in theta.items()}

        def work(ids: Tensor) -> None:
            mine, rows = self._some(theta, ids), self._capacity.rows // 4
            total, mean = mean_gradient(self._formulation, source, mine, ids, rows)
            for name, g in total.items():
                out[name][ids] = g
            loss[ids.cpu()] = mean.cpu()

        self._capacity.each(self.active.nonzero()[:, 0].to(self.device), work)
        return Trained(out, loss)

    def _rows_of_all(self, rows: Tensor) -> Tensor:
        return rows

    def _sum_of_all(self, x: Tensor) -> Tensor:
        return x

    # ------------------------------------------------------------------ how good

    def measure(self, theta: Tree, split: Split, metric: PerSample) -> Tensor:
        def of(mine: Tree, ids: Tensor, classes: Tensor, rows: int) -> Tensor:
            source = self.splits[split]
            return mean_metric(self._formulation, source, mine, ids, classes, metric, rows)

        return self._of_each(theta, of)

    def judge(self, theta: Tree, split: Split, metric: PerClient, count: int) -> Tensor:
        def of(mine: Tree, ids: Tensor, classes: Tensor, rows: int) -> Tensor:
            source = self.splits[split]
            return client_metric(self._formulation, source, mine, ids, classes, metric, count, rows)

        return self._of_each(theta, of)

    @torch.no_grad()
    def _of_each(self, theta: Tree, of: Callable[[Tree, Tensor, Tensor, int], Tensor]) -> Tensor:
        """Numbers per client, for as many clients and samples at a time as memory allows."""
        parts: list[Tensor] = []

        def work(ids: Tensor) -> None:
            classes = self.federation.classes[ids]
            parts.append(of(self._some(theta, ids), ids, classes, self._capacity.rows).cpu())

        for ids in self.owned.split(min(self._capacity.clients, self._capacity.rows)):
            self._capacity.each(ids, work)
        return torch.cat(parts)

    # ------------------------------------------------------------------ inside

    def _some(self, tree: Tree, ids: Tensor) -> Tree:
        """Rows of some clients, in order; the tree itself where these are all."""
        return tree if len(ids) == self.num_clients else _rows(tree, ids)
