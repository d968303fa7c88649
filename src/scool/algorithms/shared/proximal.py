"""What methods with a proximal term have in common."""

from scool.errors import require
from scool.learning.local_sgd import LocalSGD


def check_pull(field: str, strength: float, sgd: LocalSGD) -> None:
    r"""Refuse a pull that pushes away, or one that overshoots.

    A step multiplies $\theta_i - a_i$ by $1 - \eta\lambda$: from $\eta\lambda = 2$ on it grows.
    """
    require(strength >= 0, field, strength, "give 0 (no pull) or more")
    if sgd.optimizer == "sgd" and not sgd.momentum and not sgd.clip_norm:
        remedy = f"with lr = {sgd.lr:g} the pull overshoots; give less than {2 / sgd.lr:g}"
        require(strength * sgd.lr < 2, field, strength, f"{remedy}, or a smaller lr")
