"""From stored uint8 images to network inputs, batched on the device of the images."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from scool.errors import require

_GREY = (0.299, 0.587, 0.114)  # luma of ITU-R 601-2, what Pillow and torchvision use


@dataclass(frozen=True)
class ImageTransform:
    """Crop, flip, saturation jitter and normalisation of uint8 images (..., channels, H, W).

    Args:
        mean: per channel, of images scaled to [0, 1].
        std: per channel.
        padding: pixels added on every side before a random crop back to the stored size.
        fill: grey value of the padding.
        flip: mirror left-right with probability one half.
        saturation: s of a factor uniform in [max(0, 1 - s), 1 + s]; colour images only.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    padding: int = 0
    fill: int = 128
    flip: bool = False
    saturation: float = 0.0

    num_draws: ClassVar[int] = 4
    """Uniform numbers that one augmented sample uses: dy, dx, flip, saturation."""

    def __post_init__(self) -> None:
        require(len(self.mean) == len(self.std), "std", self.std, "give one number per channel")
        require(min(self.std) > 0, "std", self.std, "give positive numbers")
        require(self.padding >= 0, "padding", self.padding, "give 0 or more pixels")
        require(0 <= self.fill <= 255, "fill", self.fill, "give a grey value from 0 to 255")
        require(self.saturation >= 0, "saturation", self.saturation, "give 0 or more")

    def plain(self) -> "ImageTransform":
        """The same normalisation without augmentation."""
        return replace(self, padding=0, flip=False, saturation=0.0)

    def evaluate(self, x: Tensor) -> Tensor:
        """Normalise only: (..., C, H, W) uint8 to float32.

        >>> ImageTransform((0.5,), (0.25,)).evaluate(torch.full((1, 1, 2), 255)).tolist()
        [[[2.0, 2.0]]]
        """
        scale, shift, _ = constants(self, x.device)
        return x.float() * scale + shift

    def augment(self, x: Tensor, draws: Tensor) -> Tensor:
        """The training view of each image: pad and crop, flip, saturation, normalise.

        Follows torchvision's RandomCrop, RandomHorizontalFlip and ColorJitter(saturation), except
        that the jittered pixels are not rounded to whole grey values on the way.

        Args:
            x: (*batch, C, H, W) uint8.
            draws: (*batch, num_draws) uniform numbers in [0, 1).
        """
        images = x.reshape(-1, *x.shape[-3:])  # (B, C, H, W)
        u = draws.reshape(-1, self.num_draws)
        if self.padding or self.flip:
            images = self._shifted(images, u)
        images = images.float()
        if self.saturation and images.shape[1] == 3:
            images = self._jittered(images, u[:, 3])
        scale, shift, _ = constants(self, x.device)
        return (images * scale + shift).view(x.shape)

    def _shifted(self, images: Tensor, u: Tensor) -> Tensor:
        """Crop and flip as one gather: each output pixel looks up where it came from."""
        count, channels, height, width = images.shape
        row = torch.arange(height, device=images.device).expand(count, height)
        column = torch.arange(width, device=images.device).expand(count, width)
        if self.flip:
            column = torch.where(u[:, 2:3] < 0.5, width - 1 - column, column)
        if self.padding:
            offset = (u[:, :2] * (2 * self.padding + 1)).long() - self.padding  # (B, 2)
            row, column = row + offset[:, :1], column + offset[:, 1:]
        source = row.clamp(0, height - 1)[:, :, None] * width + column.clamp(0, width - 1)[:, None]
        source = source.view(count, 1, height * width).expand(-1, channels, -1)
        moved = images.reshape(count, channels, -1).gather(2, source).view(images.shape)
        if not self.padding:
            return moved
        inside = ((row >= 0) & (row < height))[:, :, None] & ((column >= 0) & (column < width))[
            :, None
        ]
        return moved.masked_fill(~inside[:, None], self.fill)

    def _jittered(self, images: Tensor, u: Tensor) -> Tensor:
        low = max(0.0, 1 - self.saturation)
        factor = (low + u * (1 + self.saturation - low)).float()[:, None, None, None]
        grey = (images * constants(self, images.device)[2]).sum(dim=1, keepdim=True)
        return (grey + factor * (images - grey)).clamp(0, 255)


@lru_cache(maxsize=64)  # copied to a device once, not once per batch
def constants(transform: ImageTransform, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(C, 1, 1) scale and shift of the normalisation, and the grey weights."""
    mean = torch.tensor(transform.mean, dtype=torch.float64)[:, None, None]
    std = torch.tensor(transform.std, dtype=torch.float64)[:, None, None]
    grey = torch.tensor(_GREY)[:, None, None]
    scale, shift = (1 / (255 * std)).float(), (-mean / std).float()
    return scale.to(device), shift.to(device), grey.to(device)


CIFAR10 = ImageTransform(
    (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), padding=4, flip=True, saturation=0.9
)
"""The released CIFAR-10 augmentation."""

CIFAR100 = ImageTransform(
    (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), padding=4, flip=True, saturation=0.9
)
"""The released CIFAR-100 normalisation with the augmentation of CIFAR-10."""

MINI_IMAGENET = ImageTransform((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), padding=8, flip=True)
"""ImageNet's normalisation, crop and flip: our choice, the paper's preprocessing is not public."""

MNIST = ImageTransform((0.1307,), (0.3081,))
"""No augmentation: mirrored or shifted digits are other inputs than the test set's."""

FASHION_MNIST = ImageTransform((0.2860,), (0.3530,))
