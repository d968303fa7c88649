"""The attention encoder: what a client has learned, in a few numbers a layer row."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from scool.randomness import generator
from scool.types import Params, Tree

# torch's stubs leave its type open
vector_norm: Callable[..., Tensor] = torch.linalg.vector_norm  # pyright: ignore

SMALL = 1e-10  # added to the norm of an update; a model that did not move is encoded as 0


class RowMLP(NamedTuple):
    """The names in phi of the MLP of one parameter tensor."""

    in_weight: str  # (hidden, c_b)
    in_bias: str  # (hidden,)
    out_weight: str  # (out, hidden)
    out_bias: str  # (out,)

    @staticmethod
    def of(name: str) -> "RowMLP":
        return RowMLP(*(f"{name}/{part}" for part in RowMLP._fields))


def update_norm(updates: Tree) -> Tensor:
    """(n,) Euclidean norm of each client's whole update."""
    norms = [vector_norm(x.reshape(len(x), -1), dim=1) for x in updates.values()]
    return vector_norm(torch.stack(norms), dim=0)


@final
@dataclass(frozen=True)
class LayerwiseRowEncoder:
    r"""Each parameter tensor b, seen as r_b rows, has its own MLP that every row goes through.

    $e_b(x) = \tanh(W_2 \tanh(W_1 x + b_1) + b_2)$ on rows of the update scaled to unit norm. The
    embedding $u_i$ concatenates $e_b(\mathrm{row}) / \sqrt{n_b r_b}$ ($n_b$ tensors), so that
    $\langle u_i, u_j\rangle = f_{ij} = \frac1{n_b}\sum_b\frac1{r_b}\sum_{rows}
    \langle e_b, e_b'\rangle$ and $|f_{ij}|$ is at most `out`.
    """

    hidden: int = 10
    out: int = 5

    def init(self, theta0: Params, seed: int) -> Params:
        """phi with uniform entries in +-1/sqrt(fan_in), on the device and dtype of the model."""
        rng = generator(seed, "encoder")
        phi: Params = {}
        for name, x in theta0.items():
            columns = x[0].numel() if x.ndim else 1
            for part, shape, fan_in in zip(
                RowMLP.of(name),
                [(self.hidden, columns), (self.hidden,), (self.out, self.hidden), (self.out,)],
                [columns, columns, self.hidden, self.hidden],
                strict=True,
            ):
                draw = torch.rand(shape, dtype=torch.float64, generator=rng)
                phi[part] = ((2 * draw - 1) / math.sqrt(fan_in)).to(x)
        return phi

    def embed(self, phi: Params, updates: Tree, sign: float = 1.0) -> Tensor:
        """(n, D) embeddings of n clients; `sign` turns the updates around."""
        scale = (sign / (update_norm(updates) + SMALL))[:, None, None]
        parts = [self._rows(phi, name, x, scale) for name, x in updates.items()]
        weights = [1 / math.sqrt(len(parts) * part.shape[1]) for part in parts]
        pieces = [(c * part).flatten(1) for c, part in zip(weights, parts, strict=True)]
        return torch.cat(pieces, dim=1)

    def _rows(self, phi: Params, name: str, x: Tensor, scale: Tensor) -> Tensor:
        """(n, r_b, out); the scale is applied after the product, so no update is copied."""
        mlp = RowMLP.of(name)
        rows = x.reshape(len(x), x.shape[1] if x.ndim > 1 else 1, -1)  # (n, r_b, c_b)
        inner = torch.tanh((rows @ phi[mlp.in_weight].to(x).T) * scale + phi[mlp.in_bias].to(x))
        return torch.tanh(inner @ phi[mlp.out_weight].to(x).T + phi[mlp.out_bias].to(x))
