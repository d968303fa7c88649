"""Judging models by validation data."""

from scool.contracts import Engine
from scool.errors import DataError, require
from scool.learning.cross import CrossDraw

WHOLE = CrossDraw(cross_samples=0, cross_augment=False)
"""All samples as they are: what a model is judged by where nobody else waits for the answer."""


def check_validation(share: float) -> None:
    """Refuse a share that leaves nothing to judge by, or nothing to learn from."""
    require(0 < share < 1, "validation", share, "give a fraction between 0 and 1, e.g. 0.2")


def require_validation(engine: Engine) -> None:
    """Refuse a federation where a client has nothing to judge by.

    Raises:
        DataError: names the first such client.
    """
    lacking = engine.val_sizes == 0
    if bool(lacking.any()):
        client = int(lacking.int().argmax())
        raise DataError(
            f"client {client} has no validation samples, and the method judges by them: use "
            "`scool.fit` (it sets some aside), or give a federation that has them"
        )
