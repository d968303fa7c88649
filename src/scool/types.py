"""Names for the shapes that travel between the rooms."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from torch import Tensor

Params: TypeAlias = dict[str, Tensor]
"""One client's parameters by name; the names and shapes of `nn.Module.named_parameters()`."""

Tree: TypeAlias = dict[str, Tensor]
"""The parameters of n clients, one tensor per name, client axis first: `(n, *shape)`."""

Info: TypeAlias = Mapping[str, Any]
"""What a person may want to see of a round, by name: numbers, small tensors, and the graph: a
tensor, or the edges of many clients."""
