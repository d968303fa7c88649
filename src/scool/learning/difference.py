"""How far the models have come from the first one."""

from collections.abc import Iterator, Mapping
from typing import final

from torch import Tensor

from scool.types import Params, Tree


@final
class Difference(Mapping[str, Tensor]):
    """theta_i - theta^0, a tensor at a time when it is asked for: most priors never ask."""

    def __init__(self, theta: Tree, theta0: Params) -> None:
        self.theta, self.theta0 = theta, theta0

    def __getitem__(self, name: str) -> Tensor:
        return self.theta[name] - self.theta0[name].to(self.theta[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.theta)

    def __len__(self) -> int:
        return len(self.theta)

    def rows(self, clients: slice) -> "Difference":
        """Of some clients only."""
        return Difference({name: t[clients] for name, t in self.theta.items()}, self.theta0)
