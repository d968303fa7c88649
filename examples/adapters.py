"""A frozen body with adapters (LoRA): clients train and exchange a small part of a large model.

The body learns from public images. Then twelve clients with 20 images each adapt it; every second
one names the digits in another way. Only what trains is kept per client, sent and mixed.
"""

import numpy as np
from sklearn.datasets import load_digits
from torch import Tensor, nn

import scool

x, y = load_digits(return_X_y=True)
x, other = (x / 16).astype("float32"), np.roll(np.arange(10), 3)
shares = np.arange(597, len(x)).reshape(12, 100)  # the first 597 images are public
clients = [(x[rows], other[y[rows]] if k % 2 else y[rows]) for k, rows in enumerate(shares)]
federation = scool.from_arrays(clients, test_fraction=0.8)
sgd = scool.LocalSGD(lr=0.2, batch_size=8)


def whole() -> nn.Sequential:
    """Any pretrained module will do in its place, such as one of torchvision."""
    body = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
    return nn.Sequential(*body, nn.Linear(128, 10))


public = scool.from_arrays([(x[:597], y[:597])])
pretrained = scool.fit(public, whole, scool.LocalOnly(sgd=sgd), rounds=4).model(0)


class Adapter(nn.Module):
    """A frozen layer W x + b with a trained correction of low rank, U V x, which begins at 0."""

    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.v = nn.Linear(layer.in_features, rank, bias=False)
        self.u = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.u.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.u(self.v(x))


def adapted() -> nn.Sequential:
    """The pretrained body with adapters, and a new head, which trains."""
    first, relu, second, *_ = pretrained.children()
    assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
    return nn.Sequential(Adapter(first), relu, Adapter(second), relu, nn.Linear(128, 10))


method = scool.SCooL(prior=scool.SBM(num_blocks=2), sgd=sgd, fraction=0.5)
for name, build in (("all from scratch", whole), ("body with adapters", adapted)):
    alone = scool.fit(federation, build, scool.LocalOnly(sgd=sgd), rounds=6)
    result = scool.fit(federation, build, method, rounds=6)
    trained = sum(rows[0].numel() for rows in result.theta.values())
    print(f"{name}: {trained} parameters train, {result.bytes_sent / 1e6:.1f} MB sent, accuracy")
    print(f"  {result.accuracy.mean():.1f} %, alone {alone.accuracy.mean():.1f} %")
