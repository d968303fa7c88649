"""A module as a function of (parameters, inputs), and the checks that copies can be stacked."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from scool.errors import ModelError
from scool.randomness import derive
from scool.types import Params, Tree


def check_stackable(module: nn.Module) -> None:
    """Refuse modules whose output depends on anything but parameters and the sample itself.

    Raises:
        ModelError: names the layer, the reason and the remedy.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) or getattr(
            layer, "track_running_stats", False
        ):
            raise ModelError(
                f"layer {name!r} is a {type(layer).__name__}: it keeps running statistics of the "
                "batches it saw, which are neither parameters that clients could exchange nor "
                "functions of one sample. Use nn.GroupNorm or nn.LayerNorm instead"
            )
    if not list(module.parameters()):
        raise ModelError("the model has no parameters: there is nothing to learn")


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
    """A detached copy of a module's parameters by name."""
    return {name: p.detach().clone() for name, p in module.named_parameters()}


class Functional:
    """`f(x; theta)`: the module as a function of its parameters."""

    def __init__(self, module: nn.Module) -> None:
        check_stackable(module)
        self.module = module
        self.has_dropout = any(
            isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0
            for layer in module.modules()
        )

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        return functional_call(self.module, params, (x,))


def unstack(tree: Tree, client: int) -> Params:
    """One client's parameters out of the stack."""
    return {name: stacked[client] for name, stacked in tree.items()}
