"""The in-process engine: all K clients on one device, trained as one stack."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import final

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from scool.contracts import Metric, Route, Split, Trained
from scool.data.federation import Federation
from scool.engines.cuda_graph import CapturedSteps
from scool.engines.ledger import Ledger
from scool.engines.memory import clients_at_once, samples_at_once, tensor_cores
from scool.engines.samples import Samples
from scool.engines.stacked import Layer, stack_module
from scool.engines.steps import Phase, one_by_one, stacked_gradient, stepwise, vmap_gradient
from scool.errors import ConfigError, QuarantineError
from scool.graph.normalise import without
from scool.learning.cross import CrossDraw
from scool.learning.local_sgd import LocalSGD, draw_samples, plan_batches
from scool.learning.losses import LOSSES
from scool.models import Functional
from scool.randomness import derive
from scool.types import Params, Tree


def resolve_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one; asking for what is absent is an error."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device = {name!r} is not a device: use auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"device = {name!r} is not possible: this torch ({torch.__version__}) sees no CUDA "
            "device. Use --device cpu, or install a CUDA build of torch"
        )
    return device


def model_bytes(tree: Tree) -> int:
    """Bytes of one client's model on the way to another."""
    return sum(t[0].numel() * t.element_size() for t in tree.values())


@final
class LocalEngine:
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
    ) -> None:
        self.device = resolve_device(device)
        self.federation = federation.to(self.device)
        self.seed = seed
        self.strict = strict
        self.ledger = Ledger()
        self.model = Functional(module.to(self.device).eval())
        self.dtype = next(module.parameters()).dtype
        self.loss = LOSSES[federation.task]
        self._captured: CapturedSteps | None = None
        stacked = stack_module(module)
        if stacked is not None and self.device.type == "cuda":
            self._gradient, self._outputs = stacked_gradient(stacked, self.loss), stacked
        else:
            self._gradient = vmap_gradient(self.model, self.loss)
            self._outputs: Layer = vmap(self.model)
        self.num_clients = federation.num_clients
        self.owned = torch.arange(self.num_clients, device=self.device)
        self.sizes = federation.train.sizes.cpu()
        self.truth = federation.truth
        self.quarantined: dict[int, str] = {}
        splits = {
            name: Samples(getattr(self.federation, name), federation.transform, self.dtype)
            for name in ("train", "val", "test")
        }
        self._train, self._splits = splits["train"], splits
        self._chunk = client_chunk or clients_at_once(module, federation, self.device)
        self._quarantine(~self._train.finite_clients(), "inputs or targets")

    @property
    def uniform_log_lik(self) -> float:
        if self.federation.task == "classification":
            return -math.log(self.federation.num_outputs)
        mask = self._train.split.mask & self.active.to(self.device)[:, None]
        y = self._train.split.y[mask].double()
        return -0.5 * float(y.var(dim=0, correction=0).sum()) if len(y) else 0.0

    @property
    def active(self) -> Tensor:
        mask = torch.ones(self.num_clients, dtype=torch.bool)
        mask[list(self.quarantined)] = False
        return mask

    def restore_quarantine(self, reasons: Mapping[int, str]) -> None:
        """Take up the quarantine of a checkpoint."""
        self.quarantined |= reasons

    def replicate(self, theta0: Params) -> Tree:
        return {
            name: p.to(self.device, self.dtype).expand(self.num_clients, *p.shape).clone()
            for name, p in theta0.items()
        }

    # ------------------------------------------------------------------ local learning

    def train(self, theta: Tree, sgd: LocalSGD, round: int, among: Tensor | None = None) -> Trained:
        chosen = self.active if among is None else self.active & among.cpu()
        out = {name: stacked.clone() for name, stacked in theta.items()}
        loss = torch.full((self.num_clients,), torch.nan, dtype=torch.float64)
        for ids in self._chunks(chosen.nonzero()[:, 0].to(self.device)):
            mine = {name: stacked[ids] for name, stacked in theta.items()}
            trained, mean = self._local_steps(mine, ids, sgd, round)
            finite = torch.isfinite(mean)
            for stacked in trained.values():
                finite &= torch.isfinite(stacked).flatten(1).all(dim=1)
            for name, stacked in trained.items():
                out[name][ids[finite]] = stacked[finite]
            loss[ids.cpu()] = mean.cpu().where(finite.cpu(), torch.nan)
            bad = torch.zeros(self.num_clients, dtype=torch.bool)
            bad[ids[~finite].cpu()] = True
            self._quarantine(bad, f"loss or model in round {round}")
        return Trained(out, loss)

    def _local_steps(
        self, theta: Tree, ids: Tensor, sgd: LocalSGD, round: int
    ) -> tuple[Tree, Tensor]:
        plan = plan_batches(sgd, self._train.split.mask[ids], ids, round, self.seed)
        shape = plan.position.shape[1:]
        draws = self._train.augmentation(derive(self.seed, "augment", round), ids, shape)
        phase = Phase(ids, plan.position, plan.weight.to(self.dtype), plan.active, draws)
        if self.model.has_dropout:
            streams = [derive(self.seed, "dropout", round, client) for client in ids.tolist()]
            return one_by_one(self.model, self.loss, self._train, theta, phase, sgd, streams)
        if self.device.type != "cuda":
            return stepwise(self._gradient, self._train, theta, phase, sgd)
        with tensor_cores():
            if self._captured is None or not self._captured.fits(theta, phase, sgd):
                self._captured = CapturedSteps(self._gradient, self._train, theta, phase, sgd)
            return self._captured.run(theta, phase)

    # ------------------------------------------------------------------ meeting others

    def mix(self, w: Tensor, tree: Tree, via: Route = "peers") -> Tree:
        active = self.active
        w = without(w.double().cpu(), active)
        sources = w.clone().fill_diagonal_(0) != 0
        size = model_bytes(tree)
        if via == "server":  # each participant fetches the common model and sends its own
            self.ledger.add("server", 2 * int((w[active] != 0).any(dim=0).sum()), size)
        else:
            self.ledger.add("mix", int(sources.sum()), size)
        mixer = w.to(self.device, self.dtype)
        if bool(active.all()):
            return {name: (mixer @ t.flatten(1)).view_as(t) for name, t in tree.items()}
        out: Tree = {}
        for name, t in tree.items():  # 0 times infinity is NaN: keep the quarantined out of sums
            idle = (~active).to(self.device).view(-1, *[1] * (t.dim() - 1))
            mixed = (mixer @ t.masked_fill(idle, 0.0).flatten(1)).view_as(t)
            out[name] = torch.where(idle, t * mixer.diagonal().view_as(idle), mixed)
        return out

    @torch.no_grad()
    def cross_loss(self, theta: Tree, pairs: Tensor, draw: CrossDraw, round: int) -> Tensor:
        active = self.active
        pairs = pairs.cpu() & active[:, None] & active
        self._count_cross(theta, pairs)
        with tensor_cores():
            if draw.cross_draw == "shared" and pairs.double().mean() > 0.5:
                losses = self._dense_cross_loss(theta, draw, round)
            else:
                losses = self._sparse_cross_loss(theta, pairs, draw, round)
        return losses.cpu().double().where(pairs, torch.nan)

    def _dense_cross_loss(self, theta: Tree, draw: CrossDraw, round: int) -> Tensor:
        """Every model on every client's draw: the samples are shared by all models."""
        owners = self.owned
        x, y, weight = self._cross_samples(owners, owners, draw, round)
        judge = vmap(self._losses_of, in_dims=(0, None, None))
        rows = samples_at_once(self.federation.input_shape, self.device)
        at_once = max(1, rows // (len(owners) * x.shape[1]))
        step = max(1, rows // x.shape[1])
        result = torch.empty(self.num_clients, self.num_clients, device=self.device)
        for models in owners.split(at_once):
            chosen = {name: t[models] for name, t in theta.items()}
            for part in owners.split(step):
                values = judge(chosen, x[part].flatten(0, 1), y[part].flatten(0, 1))
                values = values.view(len(models), len(part), -1)
                mean = (values * weight[part]).sum(2) / weight[part].sum(1).clamp(min=1)
                result[models[:, None], part] = mean.to(result.dtype)
        return result

    def _sparse_cross_loss(self, theta: Tree, pairs: Tensor, draw: CrossDraw, round: int) -> Tensor:
        """Every model on the draws of its own neighbours only."""
        degree = max(1, int(pairs.sum(dim=1).max()))
        listed = pairs.to(self.device).to(torch.int8).argsort(dim=1, descending=True, stable=True)
        listed = listed[:, :degree]  # (K, degree) sources of each model, padded with others
        count = min(draw.cross_samples or self._train.width, self._train.width)
        rows = samples_at_once(self.federation.input_shape, self.device)
        at_once = max(1, rows // (degree * count))
        step = max(1, rows // count)
        result = torch.empty(self.num_clients, self.num_clients, device=self.device)
        for models in self.owned.split(at_once):
            chosen = {name: t[models] for name, t in theta.items()}
            for columns in listed[models].split(step, dim=1):
                readers = models[:, None].expand_as(columns).flatten()
                x, y, weight = self._cross_samples(readers, columns.flatten(), draw, round)
                shape = (len(models), columns.shape[1] * x.shape[1])
                outputs = self._outputs(chosen, x.view(*shape, *x.shape[2:])).flatten(0, 1)
                values = self.loss(outputs, y.flatten(0, 1)).view(*columns.shape, -1)
                weight = weight.view(*columns.shape, -1)
                mean = (values * weight).sum(2) / weight.sum(2).clamp(min=1)
                result[models[:, None], columns] = mean.to(result.dtype)
        return result

    def _cross_samples(
        self, readers: Tensor, owners: Tensor, draw: CrossDraw, round: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(p, m, ...) samples of each owner, their targets, and the weights (p, m)."""
        streams = readers * self.num_clients + owners if draw.cross_draw == "pair" else owners
        key = derive(self.seed, "cross", round)
        mask = self._train.split.mask[owners]
        position, weight = draw_samples(mask, streams, draw.cross_samples, key)
        draws = None
        if draw.cross_augment:
            key = derive(self.seed, "cross-augment", round)
            draws = self._train.augmentation(key, streams, position.shape[1:])
        x, y = self._train.fetch(owners, position, draws)
        return x, y, weight.to(self.dtype)

    def _losses_of(self, params: Params, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.model(params, x), y)

    def _count_cross(self, theta: Tree, pairs: Tensor) -> None:
        """theta_i travels to j, one number comes back, and everyone learns the rows."""
        asked = int((pairs & ~torch.eye(self.num_clients, dtype=torch.bool)).sum())
        size = model_bytes(theta)
        self.ledger.add("cross_models", asked, size)
        self.ledger.add("cross_losses", asked, 4)
        others = self.num_clients - 1
        self.ledger.add("rows", self.num_clients * others, 4 * int(pairs.sum(1).max()))

    def cross_gradient(self, theta: Tree, w: Tensor, sgd: LocalSGD, round: int) -> Tree:
        plan = plan_batches(sgd, self._train.split.mask, self.owned, round, self.seed)
        draws = self._train.augmentation(
            derive(self.seed, "augment", round), self.owned, plan.position.shape[1:]
        )
        first = None if draws is None else draws[:, 0]
        x, y = self._train.fetch(self.owned, plan.position[:, 0], first)  # (K, b, ...)
        share = plan.weight[:, 0] / plan.weight[:, 0].sum(dim=1, keepdim=True).clamp(min=1)
        share = share.to(self.dtype).flatten()
        idle = (~self.active).to(self.device)  # 0 times NaN is NaN: blank what may not be finite
        x, y = (t.masked_fill(idle.view(-1, *[1] * (t.dim() - 1)), 0) for t in (x, y))
        x, y = x.flatten(0, 1), y.flatten(0, 1)

        def objective(params: Params, weights: Tensor) -> Tensor:
            per_source = weights[:, None].expand(-1, plan.position.shape[2]).flatten()
            return (self._losses_of(params, x, y) * share * per_source).sum()

        w = without(w.double().cpu(), self.active) * self.active[:, None]
        size = model_bytes(theta)
        edges = int((w.clone().fill_diagonal_(0) != 0).sum())
        self.ledger.add("cross_gradients", 2 * edges, size)  # the model there, the gradient back
        weights = w.to(self.device, self.dtype)
        gradient: Callable[..., Tree] = vmap(grad(objective), chunk_size=self._chunk)
        return gradient(theta, weights)

    def squared_distances(self, tree: Tree) -> Tensor:
        total = torch.zeros(self.num_clients, self.num_clients, device=self.device)
        for t in tree.values():
            flat = t.flatten(1)
            total += torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square()
        return total.double().cpu()

    def gather(self, rows: Tensor) -> Tensor:
        others = self.num_clients - 1
        self.ledger.add("gather", self.num_clients * others, rows[0].numel() * rows.element_size())
        return rows

    def total(self, x: Tensor) -> Tensor:
        self.ledger.add("sum", 2 * (self.num_clients - 1), x.numel() * x.element_size())
        return x

    # ------------------------------------------------------------------ how good

    @torch.no_grad()
    def measure(self, theta: Tree, split: Split, metric: Metric) -> Tensor:
        source = self._splits[split]
        rows = samples_at_once(self.federation.input_shape, self.device)
        judge = vmap(metric)
        result = torch.full((self.num_clients,), torch.nan, dtype=torch.float64)
        for ids in self.owned.split(min(self._chunk, rows)):
            mine = {name: t[ids] for name, t in theta.items()}
            mask = source.split.mask[ids].double()
            total = torch.zeros(len(ids), dtype=torch.float64, device=self.device)
            columns = torch.arange(source.width, device=self.device)
            for part in columns.split(max(1, rows // len(ids))):
                x, y = source.fetch(ids, part.expand(len(ids), -1), None)
                with tensor_cores():
                    outputs = self._outputs(mine, x)
                values = judge(outputs, y, self.federation.classes[ids]).double()
                total += values.where(mask[:, part] > 0, 0.0).sum(dim=1)
            result[ids.cpu()] = (total / mask.sum(dim=1)).cpu()  # 0 / 0 is NaN: no samples
        return result

    # ------------------------------------------------------------------ inside

    def _chunks(self, ids: Tensor) -> Iterator[Tensor]:
        return (part for part in ids.split(self._chunk) if len(part))

    def _quarantine(self, bad: Tensor, reason: str) -> None:
        for client in bad.nonzero()[:, 0].tolist():
            if client in self.quarantined:
                continue
            if self.strict:
                raise QuarantineError(
                    f"client {client} has non-finite {reason}, and the run is strict. Clean its "
                    "data, lower --lr, or run without --strict to leave the client out"
                )
            self.quarantined[client] = reason
