"""Large convolutions on a CPU: clients shared out over threads, one client at a time in each.

A convolution of the paper's CIFAR network already keeps a core busy, so stacking clients only
makes the temporaries larger. What pays is to give every core clients of its own (torch releases
the interpreter's lock while it computes) and channels-last images, for which max-pooling is ten
times faster.
"""

import copy
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from scool.engine.steps.local_steps import Phase, one_client
from scool.engine.steps.samples import Samples
from scool.learning.local_sgd import Rule
from scool.learning.losses import Loss
from scool.models import Functional, unstack
from scool.types import Params, Tree

LARGE = 50_000  # parameters of a convolutional network from which on stacking no longer pays


def suits_workers(module: nn.Module) -> bool:
    """Whether a module is a large convolutional network."""
    has_images = any(isinstance(layer, nn.Conv2d) for layer in module.modules())
    return has_images and sum(p.numel() for p in module.parameters()) >= LARGE


def by_workers(
    module: nn.Module,
    loss: Loss,
    samples: Samples,
    theta: Tree,
    phase: Phase,
    rule: Rule,
    anchor: Tree | None,
) -> tuple[Tree, Tensor]:
    """The result of `steps.one_by_one` for models that draw no random numbers."""
    workers = max(1, torch.get_num_threads())
    clients = list(range(len(phase.ids)))
    models = [_own_copy(module) for _ in range(workers)]

    def work(worker: int) -> list[tuple[Params, Tensor]]:
        torch.set_num_threads(1)  # of this thread
        done: list[tuple[Params, Tensor]] = []
        for client in clients[worker::workers]:
            mine = {name: _channels_last(stacked[client]) for name, stacked in theta.items()}
            own_anchor = anchor and unstack(anchor, client)
            one = phase.of(client)
            done.append(one_client(models[worker], loss, samples, mine, one, rule, own_anchor))
        return done

    with ThreadPoolExecutor(workers) as pool:
        parts = list(pool.map(work, range(workers)))
    torch.set_num_threads(workers)
    results = [parts[client % workers][client // workers] for client in clients]
    trained = {
        name: torch.stack([tree[name].contiguous() for tree, _ in results]) for name in theta
    }
    return trained, torch.stack([losses for _, losses in results])


def _own_copy(module: nn.Module) -> Functional:
    """Calls put parameters into the module, so that each thread needs one."""
    return Functional(copy.deepcopy(module).to(memory_format=torch.channels_last))  # type: ignore


def _channels_last(value: Tensor) -> Tensor:
    return value.contiguous(memory_format=torch.channels_last) if value.dim() == 4 else value
