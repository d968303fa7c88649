"""Layers that take the place of torch's where clients train side by side: batch normalisation whose
running statistics belong to the client, like its parameters, and dropout by hashed numbers."""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scool.randomness import derive, uniform_along
from scool.types import Params

_Norm: TypeAlias = nn.modules.batchnorm._BatchNorm


class Statistics(NamedTuple):
    """The running statistics of a layer."""

    running_mean: Tensor  # (C,)
    running_var: Tensor  # (C,)
    num_batches_tracked: Tensor  # (), in the numbers of the model, so that it can be averaged


def is_statistic(name: str) -> bool:
    """Whether a tensor of a model is a running statistic: batches move it, not gradients.

    >>> is_statistic("layer1.0.bn1.running_var"), is_statistic("layer1.0.bn1.weight")
    (True, False)
    """
    return name.rpartition(".")[2] in Statistics._fields


def is_plain(module: nn.Module) -> bool:
    """Everything is trained, nothing is used twice, and nothing is hooked to the layers."""
    layers = [layer for _, layer in module.named_modules(remove_duplicate=False)]
    weights = [p for _, p in module.named_parameters(remove_duplicate=False)]
    is_hooked = any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)
    is_trained = all(p.requires_grad for p in weights)
    return (
        is_trained
        and not is_hooked
        and all(len(set(parts)) == len(parts) for parts in (layers, weights))
    )


@final
class ClientNorm(nn.Module):
    r"""`nn.BatchNorm` without changes in place, so that `vmap` takes it.

    In training $y = \gamma (x - \mu_B) / \sqrt{\sigma_B^2 + \epsilon} + \beta$ with mean and
    variance of the batch, samples of weight 0 left out. Between `open` and `close` the layer keeps
    the statistics after the batch, $r \leftarrow (1 - m) r + m\, r_B$; the caller takes them to the
    client. A batch with one value per channel has no variance: it is normalised by the running
    statistics, which stay as they are.
    """

    def __init__(self, norm: _Norm, is_frozen: bool) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        for name in Statistics._fields:
            self.register_buffer(name, getattr(norm, name))
        self.eps, self.momentum, self.is_frozen = norm.eps, norm.momentum, is_frozen
        self.is_open = False
        self.here: Tensor | None = None  # (b,) 0 for padding
        self.fresh: Statistics | None = None

    def open(self, here: Tensor | None) -> None:
        """From now on keep the statistics of the batches."""
        self.here, self.is_open = here, True

    def close(self) -> None:
        self.here, self.is_open, self.fresh = None, False, None

    @property
    def _running(self) -> Statistics:
        return Statistics(*(getattr(self, name) for name in Statistics._fields))

    def forward(self, x: Tensor) -> Tensor:
        before = self.fresh or self._running
        is_single = self.here is None and x.numel() == x.shape[1]
        if self.is_frozen or not self.training or is_single:
            return self._normalise(x, before)
        if self.here is not None:
            return self._padded(x, before, self.here)
        mean, var, count = before
        mean, var = mean.detach().clone(), var.detach().clone()
        share = 1 / (float(count) + 1) if self.momentum is None else self.momentum
        out = F.batch_norm(x, mean, var, self.weight, self.bias, True, share, self.eps)
        self._keep(Statistics(mean, var, count + 1))
        return out

    def _normalise(self, x: Tensor, by: Statistics) -> Tensor:
        mean, var = by.running_mean.detach(), by.running_var.detach()
        var = var.clamp(min=0)  # a method may have moved the variance below zero
        return F.batch_norm(x, mean, var, self.weight, self.bias, False, 0.0, self.eps)

    def _padded(self, x: Tensor, before: Statistics, here: Tensor) -> Tensor:
        if len(x) != len(here):
            raise RuntimeError("batch normalisation of other rows than the samples of the batch")
        dims, per_channel = (0, *range(2, x.dim())), (1, -1, *[1] * (x.dim() - 2))
        is_here = (here > 0).view(-1, *[1] * (x.dim() - 1))
        count = (here > 0).sum().to(x.dtype) * (x[0].numel() // x.shape[1])
        has_spread = count > 1
        mean = x.where(is_here, 0).sum(dims) / count.clamp(min=1)
        away = (x - mean.view(per_channel)).where(is_here, 0)
        var = away.square().sum(dims) / count.clamp(min=1)
        share = 1 / (before[2] + 1) if self.momentum is None else self.momentum
        unbiased = var * count / (count - 1).clamp(min=1)
        after = Statistics(
            before[0] + share * (mean - before[0]),
            before[1] + share * (unbiased - before[1]),
            before[2] + 1,
        )
        pairs = zip(after, before, strict=True)
        self._keep(Statistics(*(torch.where(has_spread, a, b).detach() for a, b in pairs)))
        mean = torch.where(has_spread, mean, before[0]).view(per_channel)
        var = torch.where(has_spread, var, before[1].clamp(min=0)).view(per_channel)
        out = (x - mean) * torch.rsqrt(var + self.eps)
        if self.weight is None:
            return out
        return out * self.weight.view(per_channel) + self.bias.view(per_channel)

    def _keep(self, after: Statistics) -> None:
        if self.is_open:
            self.fresh = after


def _is_frozen(norm: _Norm, module: nn.Module) -> bool:
    """Whether none of its parameters is trained, or it is in evaluation mode inside a training
    module."""
    weights = list(norm.parameters())
    is_fixed = bool(weights) and not any(p.requires_grad for p in weights)
    return is_fixed or (module.training and not norm.training)


def tracking_layers(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers whose running statistics are trained, with the beginnings of their names."""
    for name, layer in module.named_modules():
        if isinstance(layer, _Norm) and layer.track_running_stats and not _is_frozen(layer, module):
            yield f"{name}." if name else "", layer
        elif isinstance(layer, ClientNorm) and not layer.is_frozen:
            yield f"{name}." if name else "", layer


def statistics_of(module: nn.Module) -> Params:
    """The running statistics that are trained, by name."""
    return {
        f"{prefix}{name}": getattr(layer, name)
        for prefix, layer in tracking_layers(module)
        for name in Statistics._fields
    }


def norm_names(module: nn.Module) -> frozenset[str]:
    """The tensors of all layers that normalise, whatever they are called: `Norm` is in the name of
    their class.

    >>> sorted(norm_names(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))))
    ['1.bias', '1.weight']
    """
    names: set[str] = set()
    for prefix, layer in module.named_modules():
        if "norm" in type(layer).__name__.lower():
            own = [n for n, _ in layer.named_parameters(recurse=False)]
            own += [n for n, _ in layer.named_buffers(recurse=False)]
            names |= {f"{prefix}.{n}" if prefix else n for n in own}
    return frozenset(names)


def with_client_norms(module: nn.Module) -> nn.Module:
    """The module with its batch normalisation exchanged, in place; a lone layer is returned as
    another."""
    made = {
        id(layer): ClientNorm(layer, _is_frozen(layer, module))
        for layer in module.modules()
        if isinstance(layer, _Norm)
    }
    for layer in list(module.modules()):
        for child, inner in layer._modules.items():
            if id(inner) in made:
                setattr(layer, child, made[id(inner)])
    return made.get(id(module), module)


_PER_CHANNEL = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


@final
class StreamDropout(nn.Module):
    """`nn.Dropout`, or that of whole channels, with numbers hashed from a stream.

    `Functional.on_batch` sets the stream around a call; without one nothing is dropped.
    """

    def __init__(self, p: float, name: str, per_channel: bool) -> None:
        super().__init__()
        self.p, self.per_channel = p, per_channel
        self.key = derive(0, "dropout", name)
        self.stream: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.stream is None or not self.p:
            return x
        shape = x.shape[:2] if self.per_channel else x.shape
        kept = uniform_along(self.stream, self.key, tuple(shape)) >= self.p
        scale = kept.to(x.dtype) / max(1 - self.p, torch.finfo(x.dtype).tiny)
        return x * scale.view(*shape, *[1] * (x.dim() - len(shape)))


def with_streams(module: nn.Module) -> nn.Module:
    """The module with its dropout layers exchanged, in place."""
    for name, layer in list(module.named_modules()):
        for child, inner in layer.named_children():
            per_channel = type(inner) in _PER_CHANNEL
            if type(inner) is nn.Dropout or per_channel:
                full = f"{name}.{child}"
                setattr(layer, child, StreamDropout(inner.p, full, per_channel))  # type: ignore
    return module
