"""What all engines have in common: who takes part, what is counted, and which models meet which
data."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scool.contracts import VERBS, MatrixT, Products, Route, Split, Trained, Updates
from scool.data.build import without_validation
from scool.data.federation import Federation
from scool.engine.ledger import (
    Ledger,
    PairList,
    count_cross,
    count_cross_gradient,
    count_fetch,
    count_gather,
    count_mix,
    count_peers,
    count_total,
    count_train_at,
    edges_of,
)
from scool.engine.scoring import check_draw
from scool.engine.steps.local_steps import split_statistics
from scool.engine.steps.updates import products, weighted_sums
from scool.errors import ConfigError, first_few
from scool.graph.edges import Edges, Matrix
from scool.graph.mixing import edges_without, without
from scool.health import Attendance, Health, Reason
from scool.learning.local_sgd import LocalSGD, Pull, Push, Rule
from scool.learning.losses import CrossDraw, Objective
from scool.models.stack import flat
from scool.types import Params, Tree

LARGE = 500 * 500  # number of weights from which on it pays to look for zeros
BLOCK = 2**22  # numbers that are mixed at a time where the result takes their place
THIN = 0.2  # share of nonzero weights up to which a sum over the edges is faster

Compare = Callable[[Tensor, Tensor], Tensor]
"""Rows (n, D) and (m, D) -> a number for each pair (n, m)."""


def _like(asked: MatrixT, found: Edges) -> MatrixT:
    """Answer in the form of the question: a matrix for a matrix."""
    return cast("MatrixT", found if isinstance(asked, Edges) else found.dense())


class CommonVerbs(ABC):
    """See `contracts.Engine` for what each verb promises."""

    offers = VERBS
    owned: Tensor  # (n,) ids of the clients held here
    device: torch.device
    dtype: torch.dtype
    norms: frozenset[str]

    def __init__(
        self,
        federation: Federation,
        seed: int,
        strict: bool,
        attendance: Attendance | None = None,
        objective: Objective | None = None,
    ) -> None:
        self.federation, self.seed, self.strict = federation, seed, strict
        self.ledger = Ledger()
        self.num_clients = federation.num_clients
        self.sizes = federation.train.sizes.cpu()
        self.val_sizes = federation.val.sizes.cpu()
        self.truth = federation.truth
        self.health = Health(self.num_clients)
        self._models: Tree | None = None  # (K, ...) with which the clients begin
        self.objective = objective or Objective()
        self.loss = self.objective.loss(federation.task)
        self.attendance = attendance or Attendance(self.num_clients, seed)
        self._views: dict[str, Self] = {}

    @property
    def active(self) -> Tensor:
        return self.health.active

    def begin_round(self, round: int) -> None:
        self.health.absent = self.attendance.absent(round)

    def begin_with(self, models: Tree | None) -> None:
        self._models = models

    def replicate(self, theta0: Params) -> Tree:
        if (own := self._models) is not None:
            mine = self.owned.cpu()
            return {name: own[name][mine].to(self.device, self.dtype) for name in theta0}
        return {
            name: p.to(self.device, self.dtype).expand(len(self.owned), *p.shape).clone()
            for name, p in theta0.items()
        }

    def empty(self) -> Self:
        nobody = copy.copy(self)
        nobody.owned = self.owned[:0]
        return nobody

    def view(self, name: str, module: nn.Module | None = None, *, whole: bool = False) -> Self:
        if name not in self._views:
            data = self._undivided() if whole else self.federation
            found = self._views[name] = self._seen_as(module, data)
            found.ledger = self.ledger
        return self._views[name]

    def _undivided(self) -> Federation:
        """The same clients, with their validation samples among the training samples."""
        return without_validation(self.federation)

    def _seen_as(self, module: nn.Module | None, federation: Federation) -> Self:
        """An engine of the same kind, with the same clients in the same places."""
        raise NotImplementedError("this engine does not offer `view`")

    def collect(self, tree: Tree) -> Tree:
        return {name: t.cpu() for name, t in tree.items()}

    def settle(self, graph: Matrix, tree: Tree) -> Tree:
        return tree  # all clients are in one place

    def layout(self) -> Mapping[str, Tensor]:
        return {}

    def restore(self, layout: Mapping[str, Tensor]) -> None:  # noqa: B027
        """All clients are in one place: nothing to do."""

    def quarantine(self, reasons: Mapping[int, Reason]) -> None:
        self.health.quarantine(reasons)

    @property
    def uniform_log_lik(self) -> float:
        if self.federation.task == "classification":
            return -self.objective.uninformed(self.federation.num_outputs)
        train = self.federation.train
        mask = train.mask & self.health.healthy.to(train.mask.device)[:, None]
        y = train.y[mask].double()
        if len(y) and not self.objective.is_standard("regression"):
            return -float(self.loss(y.mean(dim=0).expand_as(y), y).mean())
        return -0.5 * float(y.var(dim=0, correction=0).sum()) if len(y) else 0.0

    def train(
        self,
        theta: Tree,
        sgd: LocalSGD,
        round: int,
        among: Tensor | None = None,
        pull: Pull | Push | None = None,
        only: frozenset[str] | None = None,
    ) -> Trained:
        chosen = self.active if among is None else self.active & among.cpu()
        self.ledger.add_samples(int(self._samples(sgd, round)[chosen].sum()))
        rule, anchor = Rule(sgd.at_round(round), only=only), None
        if isinstance(pull, Push):
            rule, anchor = rule._replace(pushes=True), pull.slope
        elif pull is not None and pull.strength:
            rule, anchor = rule._replace(strength=pull.strength), pull.anchor
        return self.learn(theta, rule, anchor, round, chosen)

    def _samples(self, sgd: LocalSGD, round: int) -> Tensor:
        """(K,) samples that the local steps of each client go through in a round."""
        pace = self.attendance.pace(round, torch.arange(self.num_clients))
        return sgd.samples_per_round(self.sizes, round, pace.share)

    @abstractmethod
    def learn(
        self, theta: Tree, rule: Rule, anchor: Tree | None, round: int, chosen: Tensor
    ) -> Trained:
        """The local steps of the clients in `chosen`, (K,) bool."""

    def train_at(self, theta: Tree, pairs: Matrix, sgd: LocalSGD, round: int) -> Trained:
        asked = Edges.of(pairs).nonzero_pairs()
        active = asked.among(self.active)
        edges = PairList(active.i, active.j)
        count_train_at(self.ledger, theta, edges)
        self.ledger.add_samples(int(self._samples(sgd, round)[edges.j].sum()))
        found = self._visit(theta, PairList(asked.i, asked.j), edges, sgd, round)
        loss = active.on(found.loss, torch.nan)
        values = loss.lookup(asked) if isinstance(pairs, Edges) else loss.dense()
        return Trained(found.theta, values)

    @abstractmethod
    def _visit(
        self, theta: Tree, asked: PairList, edges: PairList, sgd: LocalSGD, round: int
    ) -> Trained:
        """Rows for all pairs asked for, trained where both clients are active (`edges`), and the
        losses of these (E,)."""

    def mix(self, w: Matrix, tree: Tree, via: Route = "peers", overwrite: bool = False) -> Tree:
        receivers = self.health.healthy if via == "server" else self.active
        graph = checked_weights(w, self.active, receivers)
        count_mix(self.ledger, tree, PairList(graph.i, graph.j), self.active, via)
        return self._mix(graph, tree, overwrite)

    @abstractmethod
    def _mix(self, graph: Edges, tree: Tree, overwrite: bool) -> Tree:
        """The sums over the edges. A client that is not active counts in no sum; one with a weight
        on itself keeps that share."""

    def cross_gradient(self, theta: Tree, w: Matrix, sgd: LocalSGD, round: int) -> Tree:
        graph = checked_weights(w, self.active)
        graph = graph.take(self.active[graph.i]).nonzero_pairs()
        count_cross_gradient(self.ledger, theta, PairList(graph.i, graph.j))
        gradients, samples = self.mixed_gradients(theta, graph.dense(), sgd, round)
        self.ledger.add_samples(samples)
        return gradients

    @abstractmethod
    def mixed_gradients(
        self, theta: Tree, w: Tensor, sgd: LocalSGD, round: int
    ) -> tuple[Tree, int]:
        """sum_j w_ij grad L(batch_j; theta_i), and the samples that were gone through."""

    def gradient(self, theta: Tree, split: Split) -> Trained:
        self.ledger.add_samples(int(self.sizes[self.active].sum()) if split == "train" else 0)
        return self.gradients(theta, split)

    @abstractmethod
    def gradients(self, theta: Tree, split: Split) -> Trained:
        """The gradients of each client's mean loss over all its samples of a split."""

    def products(self, updates: Updates) -> Products:
        return products(updates)

    def weighted_sums(self, updates: Updates, weights: Tensor) -> Tree:
        return weighted_sums(updates, weights)

    def fetch(self, tree: Tree, pairs: Matrix) -> None:
        count_fetch(self.ledger, tree, edges_of(pairs).among(self.active))

    def cross_loss(self, theta: Tree, pairs: MatrixT, draw: CrossDraw, round: int) -> MatrixT:
        check_draw(draw, self.federation.task, self.objective)
        graph = Edges.of(pairs).nonzero_pairs().among(self.active)
        edges = PairList(graph.i, graph.j)
        count_cross(self.ledger, theta, edges, self.num_clients)
        losses = self._losses(theta, edges, draw, round, "train")
        return _like(pairs, graph.on(losses.cpu().double(), torch.nan))

    def peer_loss(
        self, theta: Tree, pairs: MatrixT, draw: CrossDraw, round: int, split: Split = "train"
    ) -> MatrixT:
        check_draw(draw, self.federation.task, self.objective)
        graph = Edges.of(pairs).nonzero_pairs().among(self.active)
        back, order = graph.transposed()
        edges = PairList(back.i, back.j)
        count_peers(self.ledger, theta, edges)
        losses = self._losses(theta, edges, draw, round, split).cpu().double()
        values = torch.empty_like(losses).index_put_((order,), losses)
        return _like(pairs, graph.on(values, torch.nan))

    @abstractmethod
    def _losses(
        self, theta: Tree, edges: PairList, draw: CrossDraw, round: int, split: Split
    ) -> Tensor:
        """(E,) losses of theta_i on a draw of D_j."""

    def gather(self, rows: Tensor) -> Tensor:
        count_gather(self.ledger, rows, self.num_clients)
        return self._rows_of_all(rows)

    @abstractmethod
    def _rows_of_all(self, rows: Tensor) -> Tensor:
        """Rows of the clients held here -> rows of all K."""

    def total(self, x: Tensor) -> Tensor:
        count_total(self.ledger, x, self.num_clients)
        return self._sum_of_all(x)

    @abstractmethod
    def _sum_of_all(self, x: Tensor) -> Tensor:
        """The sum over all processes."""

    def squared_distances(self, tree: Tree, other: Tree | None = None) -> Tensor:
        def distances(mine: Tensor, theirs: Tensor) -> Tensor:
            mode = "donot_use_mm_for_euclid_dist"
            return torch.cdist(mine, theirs, compute_mode=mode).square()

        moved, _ = split_statistics(tree)
        return self._all_pairs("squared_distances", moved, other or moved, distances)

    def inner(self, a: Tree, b: Tree) -> Tensor:
        a, _ = split_statistics(a)
        return self._all_pairs("inner", a, b, lambda mine, theirs: mine @ theirs.T)

    @abstractmethod
    def _all_pairs(self, purpose: str, a: Tree, b: Tree, compare: Compare) -> Tensor:
        """(K, K) float64: a number for each pair of rows, summed over the tensors."""


def checked_weights(w: Any, active: Tensor, receivers: Tensor | None = None) -> Edges:
    """The nonzero weights of a mix, the share of clients that are not active given to others.

    Raises:
        ConfigError: w has another shape, or the row of an active client is not finite.
    """
    size = (len(active), len(active))
    found = tuple(w.shape) if isinstance(w, Tensor | Edges) else type(w).__name__
    if found != size:
        raise ConfigError(f"w = {found} is not possible: give a tensor of weights of shape {size}")
    if isinstance(w, Edges):
        graph = edges_without(w.on(w.values.double()), active, receivers).nonzero_pairs()
    else:
        graph = Edges.of(without(w.double().cpu(), active, receivers))
    odd = (~graph.row_sums().isfinite()).nonzero()[:, 0].tolist()
    if odd:
        raise ConfigError(
            f"w has weights that are not finite in {len(odd)} of {len(w)} rows ({first_few(odd)}): "
            "give finite weights, 0 for clients that are not mixed"
        )
    return graph


def mixer(
    edges: PairList, share: Tensor, shape: tuple[int, int], device: torch.device, dtype: torch.dtype
) -> Callable[[Tensor], Tensor]:
    """rows (k, D) -> (m, D) sums, for a matrix of shape (m, k) with these weights (E,).

    With many clients and few neighbours only the nonzero weights are used, so that the work
    grows with K and not with its square.
    """
    size = shape[0] * shape[1]
    if size < LARGE or len(share) > THIN * size:
        matrix = share.new_zeros(shape)
        matrix[edges.i, edges.j] = share
        weights = matrix.to(device, dtype)
        return lambda rows: weights @ rows
    first = torch.searchsorted(edges.i, torch.arange(shape[0])).to(device)
    sources, shares = edges.j.to(device), share.to(device, dtype)
    return lambda rows: F.embedding_bag(
        sources, rows.contiguous(), first, mode="sum", per_sample_weights=shares
    )


def mix_tensor(mix: Callable[[Tensor], Tensor], stacked: Tensor, overwrite: bool) -> Tensor:
    """The sums for one tensor of all models; in its own memory, some columns at a time, if asked
    to: there may be no room for a second large stack."""
    rows = flat(stacked)
    if not overwrite:
        return mix(rows).view_as(stacked)
    for columns in rows.split(max(1, BLOCK // len(rows)), dim=1):
        columns.copy_(mix(columns))
    return rows.view_as(stacked)
