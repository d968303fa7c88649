"""What the settings of other papers need: models that may answer anything, and poisoned clients."""

from dataclasses import replace

import torch
from torch import Tensor

from scool.data.federation import Federation, Split
from scool.errors import require
from scool.evaluation.metrics import Metric, named
from scool.randomness import generator


def masked_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Percent right where only classes among the client's targets may be answered.

    >>> masked_accuracy(torch.tensor([[0.0, 9.0, 1.0]]), torch.tensor([2]))
    tensor(100., dtype=torch.float64)
    """
    own = targets.unique()
    return 100 * (own[outputs[:, own].argmax(dim=1)] == targets).double().mean()


MASKED = named(Metric("masked_accuracy", masked_accuracy, "masked %", "classification", digits=2))


def may_answer_all(federation: Federation) -> Federation:
    """Every model may answer every class that somebody has samples of, as in most papers; who has
    which samples is the same."""
    held = federation.classes.any(dim=0)
    return replace(federation, classes=held.expand_as(federation.classes).clone())


def poisoned(federation: Federation, share: float, seed: int) -> Federation:
    """A share of the clients, drawn by the seed, trains on labels drawn at random. They have no
    test samples: judged are the others."""
    require(0 < share < 1, "poisoned", share, "give a share of the clients, above 0 and below 1")
    require(federation.task == "classification", "poisoned", share, "it draws classes")
    rng = generator(seed, "poisoned")
    count = round(share * federation.num_clients)
    chosen = torch.randperm(federation.num_clients, generator=rng)[:count]
    parts: dict[str, Split] = {}
    for name in ("train", "val"):
        part: Split = getattr(federation, name)
        y = part.y.clone()
        y[chosen] = torch.randint(federation.num_outputs, y[chosen].shape, generator=rng)
        parts[name] = part._replace(y=y)
    mask = federation.test.mask.clone()
    mask[chosen] = False
    return replace(federation, **parts, test=federation.test._replace(mask=mask))
