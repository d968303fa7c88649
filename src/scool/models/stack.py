"""A module as a function of (parameters, inputs), and the checks that copies can be stacked."""

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from scool.errors import ModelError
from scool.models.layers import ClientNorm, StreamDropout, statistics_of, tracking_layers
from scool.models.looped import Looped, LoopWarning, why
from scool.randomness import derive
from scool.types import Params, Tree


def check_stackable(module: nn.Module) -> None:
    """Refuse modules whose output depends on anything but parameters and the sample itself.

    Raises:
        ModelError: names the layer, the reason and the remedy.
    """
    for name, layer in module.named_modules():
        is_batch_norm = isinstance(layer, nn.modules.batchnorm._BatchNorm)
        keeps_statistics = getattr(layer, "track_running_stats", False)
        if is_batch_norm and not keeps_statistics:
            raise ModelError(
                f"layer {name!r} is a {type(layer).__name__} without running statistics: what it "
                "says of a sample depends on the others of its batch. Leave out "
                "track_running_stats=False, or use nn.GroupNorm"
            )
        if keeps_statistics and not is_batch_norm:
            raise ModelError(
                f"layer {name!r} is a {type(layer).__name__} with running statistics, which only "
                "batch normalisation may have. Leave out track_running_stats=True"
            )
    if any(nn.parameter.is_lazy(t) for t in (*module.parameters(), *module.buffers())):
        raise ModelError(
            "the model has lazy layers, whose sizes are not known yet: give the sizes, or call the "
            "model once on a sample before you give it"
        )
    if not any(p.requires_grad for p in module.parameters()):
        raise ModelError("the model has no trainable parameters: there is nothing to learn")


def initial_params(build: Callable[[], nn.Module], seed: int) -> tuple[nn.Module, Params]:
    """A module and its first parameters theta^0, the same for the same seed.

    The global random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "init"))
        module = build()
    check_stackable(module)
    return module, parameters_of(module)


def parameters_of(module: nn.Module) -> Params:
    """A detached copy of what the clients train and exchange, by name: trainable parameters, and
    the running statistics of batch normalisation.

    Frozen parameters (`requires_grad_(False)`) stay in the module: nobody trains or exchanges
    them. So do the statistics of a batch normalisation whose parameters are frozen, or that is in
    evaluation mode (`layer.eval()`) while the module is in training mode.
    """
    own = {n: p.detach().clone() for n, p in module.named_parameters() if p.requires_grad}
    statistics = statistics_of(module)
    if not own or not statistics:
        return own
    dtype = next(iter(own.values())).dtype
    own |= {n: b.detach().to(dtype, copy=True) for n, b in statistics.items()}
    return {n: own[n] for n in module.state_dict() if n in own}


def fixed_tensors(module: nn.Module, own: Collection[str] = ()) -> Params:
    """A detached copy of what a module holds beside the tensors `own` of each client and its
    trainable parameters: frozen parameters and buffers, but for those that the module itself does
    not save."""
    saved = module.state_dict().keys() - set(own)
    tensors = {n: p for n, p in module.named_parameters() if not p.requires_grad}
    tensors |= {n: b for n, b in module.named_buffers()}
    tensors = {n: t for n, t in tensors.items() if n in saved}
    for name, t in tensors.items():
        if t.layout != torch.strided or t.is_complex():
            kind = f"{t.layout} {t.dtype}".replace("torch.", "")
            raise ModelError(
                f"{name!r} of the model is a {kind} tensor, which records cannot hold: keep it as "
                "real, dense parts, or register the buffer with persistent=False"
            )
    return {n: t.detach().cpu().clone() for n, t in tensors.items()}


@dataclass
class _Findings:
    """What was found out about a module in use. Kept with the module, so that all its wrappers
    know."""

    loops: set[bool] = field(default_factory=set)  # modes (training or not) that vmap refuses
    is_told: bool = False
    plain_attention: bool = False  # attention as plain products, which vmap takes


class Functional:
    """`f(x; theta)`: the module as a function of its parameters.

    Under `vmap` it works for every module: one that `vmap` refuses becomes a loop over the
    clients, and a warning says so once.
    """

    def __init__(self, module: nn.Module) -> None:
        check_stackable(module)
        self.module = module
        self.draws_by_itself = any(_draws(layer) for layer in module.modules())
        self._norms = {
            prefix: layer
            for prefix, layer in tracking_layers(module)
            if isinstance(layer, ClientNorm)
        }
        self._drops = [layer for layer in module.modules() if isinstance(layer, StreamDropout)]
        self._found: _Findings = module.__dict__.setdefault("_scool_findings", _Findings())
        if any(isinstance(layer, nn.MultiheadAttention) for layer in module.modules()):
            self._found.plain_attention = True

    @property
    def loops(self) -> bool:
        """Whether `vmap` is known to refuse the module in its present mode."""
        return self.module.training in self._found.loops

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        if self.loops:
            return self._looped(params, x)
        try:
            return self._vectorised(params, x)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            return self._second_try(params, x, error)

    @contextmanager
    def on_batch(self, stream: Tensor, here: Tensor | None = None) -> Iterator[None]:
        """One step: dropout by the numbers of a stream, a scalar tensor; batch normalisation over
        the samples that are `here` (b,), all of them by default."""
        for layer in self._drops:
            layer.stream = stream
        for norm in self._norms.values():
            norm.open(here)
        try:
            yield
        finally:
            for layer in self._drops:
                layer.stream = None
            for norm in self._norms.values():
                norm.close()

    def fresh_statistics(self) -> Params:
        """The running statistics after the batch of `on_batch`, by name."""
        return {
            f"{prefix}{name}": value
            for prefix, norm in self._norms.items()
            if norm.fresh is not None
            for name, value in norm.fresh._asdict().items()
        }

    def alone(self, params: Params, x: Tensor) -> Tensor:
        """One client, outside of `vmap`: the module as torch runs it."""
        return functional_call(self.module, params, (x,))

    def fall_back(self, error: Exception, modes: Iterable[bool] = (False, True)) -> None:
        """From now on run one client after another, in training, evaluation or both; warn once."""
        self._found.loops.update(modes)
        if not self._found.is_told:
            self._found.is_told = True
            warnings.warn(why(self.module, error), LoopWarning, stacklevel=2)

    @contextmanager
    def training(self) -> Iterator[None]:
        """The module as it is in training; outside it evaluates."""
        self.module.train()
        try:
            yield
        finally:
            self.module.eval()

    def _vectorised(self, params: Params, x: Tensor) -> Tensor:
        if not self._found.plain_attention:
            return self.alone(params, x)
        is_fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # fused kernels do not support vmap
        try:
            with sdpa_kernel(SDPBackend.MATH):
                return self.alone(params, x)
        finally:
            torch.backends.mha.set_fastpath_enabled(is_fast)

    def _second_try(self, params: Params, x: Tensor, error: Exception) -> Tensor:
        """The module with attention as plain products where it has any, else the loop."""
        if not self._found.plain_attention and "_scaled_dot_product" in str(error):
            self._found.plain_attention = True
            return self(params, x)
        if any(norm.here is not None for norm in self._norms.values()):  # batches with padding
            self.fall_back(error, (self.module.training,))
            raise RuntimeError("the clients train one after another") from error
        outputs = self._looped(params, x)  # raises where the module itself is at fault
        self.fall_back(error, (self.module.training,))
        return outputs

    def _looped(self, params: Params, x: Tensor) -> Tensor:
        names = tuple(params)

        def call(x: Tensor, *values: Tensor) -> Tensor:
            return self.alone(dict(zip(names, values, strict=True)), x)

        return Looped.apply(call, x, *params.values())  # type: ignore


def _draws(layer: nn.Module) -> bool:
    """Whether a layer draws random numbers in training."""
    if isinstance(layer, (nn.MultiheadAttention, nn.RNNBase)):
        return layer.dropout > 0
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        return layer.p > 0
    return isinstance(layer, nn.RReLU)


def unstack(tree: Tree, client: int) -> Params:
    """One client's parameters out of the stack."""
    return {name: stacked[client] for name, stacked in tree.items()}


def flat(stacked: Tensor) -> Tensor:
    """(n, D) of a tensor (n, ...), also where each client has a single number."""
    return stacked.flatten(1) if stacked.dim() > 1 else stacked[:, None]
