"""Names for the shapes that travel between the rooms."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, final

from torch import Tensor

Params: TypeAlias = dict[str, Tensor]
"""One client's parameters by name; the names and shapes of `nn.Module.named_parameters()`."""

Tree: TypeAlias = dict[str, Tensor]
"""The parameters of n clients, one tensor a name, client axis first: `(n, *shape)`."""

Info: TypeAlias = Mapping[str, Any]
"""What a person may want to see of a round, by name: numbers, small tensors, and the graph: a
tensor, or the edges of many clients."""


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


def flat(stacked: Tensor) -> Tensor:
    """(n, D) of a tensor (n, ...), also where each client has a single number."""
    return stacked.flatten(1) if stacked.dim() > 1 else stacked[:, None]
