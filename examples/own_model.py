"""Your own model: any nn.Module whose output depends on its parameters and the sample."""

import torch
from torch import nn

import scool


class SmallConv(nn.Module):
    """8x8 digits come as 64 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)  # every client has its own running statistics
        self.head = nn.Linear(8 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x.view(-1, 1, 8, 8))))
        return self.head(nn.functional.max_pool2d(x, 2).flatten(1))


federation = scool.digits(num_clients=12, groups=3, seed=0)
algorithm = scool.SCooL(
    prior=scool.SBM(num_blocks=4), sgd=scool.LocalSGD(lr=0.05, batch_size=8), fraction=0.25
)
# the class is a function that builds the module: the seed decides its first parameters
result = scool.fit(federation, SmallConv, algorithm, rounds=8, seed=1)
print(f"accuracy {result.accuracy.mean():.1f} %")

mine = result.model(0)  # client 0's own module, ready for prediction
print(type(mine).__name__, sum(p.numel() for p in mine.parameters()), "parameters")

try:
    scool.fit(federation, nn.Linear(64, 9), algorithm)  # digits have ten classes
except scool.ScoolError as error:
    print("refused:", error)
