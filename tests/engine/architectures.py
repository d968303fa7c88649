"""Modules of every kind, each with the inputs it takes."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scool.models import cnn2, linear, mlp

TOKENS = 7


class Own(nn.Module):
    """A module of given parts with a forward function of one's own."""

    def __init__(self, rule: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.rule = rule
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.rule(self, x)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.GroupNorm(2, channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.body(x))


class BasicBlock(nn.Module):
    """As in torchvision."""

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride, padding=1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(planes), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        is_wider = stride != 1 or inputs != planes
        path = nn.Conv2d(inputs, planes, 1, stride, bias=False)
        self.downsample = nn.Sequential(path, nn.BatchNorm2d(planes)) if is_wider else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    """A residual network in the shape of torchvision's, small."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, 2, padding=1, bias=False), nn.BatchNorm2d(4)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.layer1, self.layer2 = BasicBlock(4, 4, 1), BasicBlock(4, 6, 2)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(x, 1))


class SelfAttention(nn.Module):
    """Heads by hand, with the fused function of torch."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in self.split(x).unbind(2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + mixed.transpose(1, 2).flatten(2)

    def split(self, x: Tensor) -> Tensor:
        return self.qkv(x).unflatten(2, (3, self.heads, -1))


class Tied(nn.Module):
    """One matrix to embed and to read out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 6)
        self.read = nn.Linear(6, TOKENS, bias=False)
        self.read.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.read(torch.tanh(self.embed(x).mean(dim=1)))[:, :3]


class Constants(nn.Module):
    """Buffers that never change: a mean, a scale and a table of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.1, -0.2, 0.3, 0.0]))
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x - self.mean) * self.scale)  # type: ignore


class Gate(nn.Module):
    """Another branch for other values: nothing that `vmap` could follow."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.up.bias.sum() > 0:
            return self.up(x)
        return self.down(-x)


def in_place(module: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(len(x), 3, dtype=x.dtype)
    out += module.head(x)  # type: ignore
    return out


def with_tokens(rule: Callable[..., Tensor], **parts: nn.Module) -> nn.Module:
    return Own(rule, embed=nn.Embedding(TOKENS, 6, padding_idx=0), **parts)


class Case(NamedTuple):
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: int = 0
    loop: str = ""  # what the warning of the loop names
    is_stacked: bool = False  # has a fast form on a GPU
    is_random: bool = False  # batches are full, so that both loops draw the same numbers


IMAGE = (4, 9, 9)
WORDS = (5,)
SEQ = nn.Sequential
CASES = {
    "linear": Case(lambda: linear((4,), 3), (4,), is_stacked=True),
    "mlp": Case(lambda: mlp((2, 3), 3, (7, 5)), (2, 3), is_stacked=True),
    "cnn2": Case(lambda: cnn2((1, 16, 16), 3), (1, 16, 16), is_stacked=True),
    "group-norm-cnn": Case(
        lambda: SEQ(
            nn.Conv2d(4, 6, 3), nn.ReLU(), nn.GroupNorm(2, 6), nn.MaxPool2d(2, 1),
            nn.Conv2d(6, 4, 3), nn.GELU(), nn.GroupNorm(1, 4, affine=False), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(16, 3),
        ),
        IMAGE, is_stacked=True,
    ),
    "strided-padded": Case(
        lambda: SEQ(
            nn.Conv2d(4, 5, (3, 2), stride=(2, 1), padding=(2, 1), bias=False), nn.SiLU(),
            nn.AvgPool2d(2, padding=1), nn.AdaptiveAvgPool2d((2, 1)), nn.Flatten(),
            nn.Linear(10, 3),
        ),
        IMAGE, is_stacked=True,
    ),
    "dilated-grouped": Case(
        lambda: SEQ(
            nn.Conv2d(4, 8, 3, padding=2, dilation=2, groups=2), nn.ReLU(),
            nn.Conv2d(8, 4, 3, padding="same", padding_mode="circular"), nn.Tanh(),
            nn.ConvTranspose2d(4, 2, 3, stride=2), nn.Flatten(), nn.Linear(722, 3),
        ),
        IMAGE,
    ),
    "depthwise-separable": Case(
        lambda: SEQ(
            nn.Conv2d(4, 4, 3, groups=4, bias=False), nn.Conv2d(4, 6, 1),
            nn.InstanceNorm2d(6, affine=True), nn.ReLU6(), nn.AdaptiveMaxPool2d(2), nn.Flatten(),
            nn.Linear(24, 3),
        ),
        IMAGE,
    ),
    "residual": Case(
        lambda: SEQ(
            nn.Conv2d(4, 6, 3, stride=2), Residual(6), nn.MaxPool2d(3, 2, 1, ceil_mode=True),
            nn.Flatten(), nn.Linear(54, 3),
        ),
        IMAGE,
    ),
    "layer-norm-mlp": Case(
        lambda: SEQ(nn.Linear(4, 6), nn.LayerNorm(6), nn.ELU(), nn.Flatten(), nn.Linear(12, 3)),
        (2, 4), is_stacked=True,
    ),
    "activations": Case(
        lambda: SEQ(
            nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 6), nn.SiLU(), nn.Linear(6, 6), nn.Tanh(),
            nn.Linear(6, 6), nn.LeakyReLU(inplace=True), nn.Sigmoid(), nn.Linear(6, 3),
        ),
        (4,), is_stacked=True,
    ),
    "more-activations": Case(
        lambda: SEQ(nn.Linear(4, 6), nn.PReLU(), nn.Mish(), nn.Softplus(), nn.GLU(), nn.RMSNorm(3)),
        (4,),
    ),
    "conv1d": Case(
        lambda: SEQ(
            nn.Conv1d(3, 5, 3, padding=1), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(5, 4, 2),
            nn.AvgPool1d(2), nn.Flatten(), nn.Linear(4, 3),
        ),
        (3, 6),
    ),
    "text": Case(
        lambda: with_tokens(lambda m, x: m.head(m.embed(x).mean(dim=1)), head=nn.Linear(6, 3)),
        WORDS, TOKENS,
    ),
    "tied": Case(Tied, WORDS, TOKENS),
    "multihead-attention": Case(
        lambda: with_tokens(
            lambda m, x: m.head(m.mix(m.embed(x), m.embed(x), m.embed(x))[0].mean(dim=1)),
            mix=nn.MultiheadAttention(6, 2, batch_first=True), head=nn.Linear(6, 3),
        ),
        WORDS, TOKENS,
    ),
    "attention-by-hand": Case(
        lambda: SEQ(nn.Linear(4, 8), SelfAttention(8, 2), nn.Flatten(), nn.Linear(24, 3)), (3, 4)
    ),
    "transformer": Case(
        lambda: with_tokens(
            lambda m, x: m.head(m.body(m.embed(x) + m.places.weight).flatten(1)),
            places=nn.Embedding(5, 6), head=nn.Linear(30, 3),
            body=nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True, norm_first=True),
        ),
        WORDS, TOKENS,
    ),
    "batch-norm": Case(lambda: SEQ(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), (4,)),
    "batch-norm-cumulative": Case(
        lambda: SEQ(nn.Linear(4, 5), nn.BatchNorm1d(5, momentum=None, affine=False), nn.Tanh(),
                    nn.Linear(5, 3)),
        (4,),
    ),
    "batch-norm-loop": Case(
        lambda: SEQ(nn.Linear(4, 4), nn.BatchNorm1d(4), Gate(), nn.Linear(4, 3)), (4,),
        loop="choose by torch.where",
    ),
    "resnet": Case(ResNet, IMAGE),
    "constant-buffers": Case(Constants, (4,)),
    "same-layer-twice": Case(
        lambda: (lambda layer: SEQ(layer, nn.Tanh(), layer, nn.Linear(4, 3)))(nn.Linear(4, 4)), (4,)
    ),
    "frozen-layer": Case(
        lambda: SEQ(nn.Linear(4, 6).requires_grad_(False), nn.Tanh(), nn.Linear(6, 3)), (4,)
    ),
    "dropout": Case(
        lambda: SEQ(nn.Linear(4, 9), nn.ReLU(), nn.Dropout(0.4), nn.Linear(9, 3)), (4,),
        is_random=True,
    ),
    "attention-dropout": Case(
        lambda: with_tokens(
            lambda m, x: m.head(m.mix(m.embed(x), m.embed(x), m.embed(x))[0].mean(dim=1)),
            mix=nn.MultiheadAttention(6, 2, dropout=0.3, batch_first=True), head=nn.Linear(6, 3),
        ),
        WORDS, TOKENS, is_random=True,
    ),
    "control-flow": Case(
        lambda: SEQ(nn.Linear(4, 4), Gate(), nn.Linear(4, 3)), (4,),
        loop=r"layer '1' \(Gate\), in `if self.up.bias.sum\(\) > 0:`,.*choose by torch.where",
    ),
    "functional-dropout": Case(
        lambda: Own(lambda m, x: F.dropout(m.head(x), 0.5, m.training), head=nn.Linear(4, 3)), (4,),
        loop=r"random operation.*out of forward", is_random=True,
    ),
    "in-place": Case(
        lambda: Own(in_place, head=nn.Linear(4, 3)), (4,), loop=r"Own, in `out \+= .*out of place"
    ),
    "slow-gradient": Case(
        lambda: Own(
            lambda m, x: m.head(m.body(x).unfold(2, 2, 1).flatten(1)),
            body=nn.Conv1d(2, 3, 2), head=nn.Linear(36, 3),
        ),
        (2, 8), loop=r"the gradient of the model.*unfold_backward.*replace the operation",
    ),
    "numpy": Case(
        lambda: Own(
            lambda m, x: m.head(torch.from_numpy(x.detach().numpy().clip(-1, 1))),
            head=nn.Linear(4, 3),
        ),
        (4,), loop="no numpy",
    ),
    "lstm": Case(
        lambda: with_tokens(
            lambda m, x: m.head(m.body(m.embed(x))[0][:, -1]),
            body=nn.LSTM(6, 5, batch_first=True), head=nn.Linear(5, 3),
        ),
        WORDS, TOKENS, loop=r"layer 'body' \(LSTM\) cannot",
    ),
}  # fmt: skip


def build(case: Case, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(11)
    return case.build().to(dtype)
