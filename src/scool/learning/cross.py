"""Which samples of D_j stand for D_j when theta_i is tried on it: the draw behind L_ij."""

from dataclasses import dataclass
from typing import Literal

from scool.errors import check_fields, require


@dataclass(frozen=True)
class CrossDraw:
    r"""Samples for the cross losses $L_{ij} = L(D_j; \theta_i)$.

    One batch of ten a pair, as released, leaves the graph noisy; fifty samples bring its distance
    to the truth from 0.45 to 0.05 on CIFAR-10, at little cost.
    """

    cross_samples: int = 50
    """Samples of D_j a pair is judged by; 0 takes all of D_j."""
    cross_draw: Literal["shared", "pair"] = "shared"
    """`shared`: one draw of D_j a round serves all models; `pair`: a fresh draw for every pair."""
    cross_augment: bool = True
    """Send the samples through the training augmentation (where the data has one)."""
    cross_noise: float = 0.0
    """epsilon: a label counts as noise with this probability, which bounds the loss of a sample."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(
            self.cross_samples >= 0,
            "cross_samples",
            self.cross_samples,
            "give a positive number, or 0 for all samples",
        )
        is_share = 0 <= self.cross_noise < 1
        require(is_share, "cross_noise", self.cross_noise, "give a share of labels in [0, 1)")
