"""Checks of options that several methods have, and of the data that some need."""

from scool.contracts import Engine
from scool.errors import DataError, require
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import CrossDraw

WHOLE = CrossDraw(cross_samples=0, cross_augment=False)
"""All samples as they are, without augmentation or noise: for losses that stay with the client."""


def check_validation(share: float) -> None:
    """Refuse a share that leaves nothing to judge by, or nothing to learn from."""
    require(0 < share < 1, "validation", share, "give a fraction between 0 and 1, e.g. 0.2")


def require_validation(engine: Engine, of_all: bool = True) -> None:
    """Refuse a federation where a client has nothing to judge by, or nobody has.

    Raises:
        DataError: names the first such client.
    """
    lacking = (engine.val_sizes == 0) & (engine.sizes > 0)  # else there is none yet
    if bool(lacking.any() if of_all else lacking.all()):
        client = int(lacking.int().argmax())
        raise DataError(
            f"client {client} has no validation samples, and the method judges by them: use "
            "`scool.fit` (it sets some aside), or give a federation that has them"
        )


def check_pull(field: str, strength: float, sgd: LocalSGD) -> None:
    r"""Refuse a pull that pushes away, or one that overshoots.

    A step multiplies $\theta_i - a_i$ by $1 - \eta\lambda$: from $\eta\lambda = 2$ on it grows.
    """
    require(strength >= 0, field, strength, "give 0 (no pull) or more")
    if sgd.optimizer == "sgd" and not sgd.momentum and not sgd.clip_norm:
        remedy = f"with lr = {sgd.lr:g} the pull overshoots; give less than {2 / sgd.lr:g}"
        require(strength * sgd.lr < 2, field, strength, f"{remedy}, or a smaller lr")


def check_plain(sgd: LocalSGD, name: str) -> None:
    """Refuse an optimiser with a memory, for a method whose formula is that of single steps."""
    remedy = f"{name} is defined for plain SGD: leave it at "
    require(sgd.optimizer == "sgd", "optimizer", sgd.optimizer, f"{remedy}'sgd'")
    require(sgd.momentum == 0, "momentum", sgd.momentum, f"{remedy}0")
