"""A graph over K clients as the list of its pairs: memory and work grow with the edges."""

from collections.abc import Callable, Iterator
from functools import cached_property, partialmethod
from typing import Any, NoReturn, TypeAlias, final

import torch
from torch import Tensor

from scool.errors import ConfigError

THIN = 0.2  # share of listed pairs up to which sums over them beat a matrix product
SMALL = 500  # clients up to which a matrix is no burden: records hold one, as they always did
BLOCK = 2**24  # numbers in one piece of work
MOST = 20_000  # clients up to which a graph may be looked at as a matrix
_untyped: Any = torch  # its stubs leave the type of `unique` open
unique: Callable[..., Any] = _untyped.unique


def parts(size: int, *lists: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut lists of the same length into parts of at most `size` entries."""
    for begin in range(0, max(1, len(lists[0])), size):
        yield tuple(x[begin : begin + size] for x in lists)


@final
class Edges:
    """Sorted pairs (receiver i, source j) with a value each. Never changed.

    It stands for a K x K matrix that holds `fill` wherever no pair is listed: 0 for weights, NaN
    for losses, False for sets of pairs. It is not a tensor: what is not among the methods here is
    asked of `values`, or of the matrix that `dense` returns for up to 20,000 clients.

    >>> graph = Edges.of(torch.tensor([[0.0, 2.0], [0.5, 0.0]]))
    >>> graph.i.tolist(), graph.j.tolist(), graph.values.tolist()
    ([0, 1], [1, 0], [2.0, 0.5])
    >>> graph.row_sums().tolist(), graph.dense()[1].tolist()
    ([2.0, 0.5], [0.5, 0.0])
    """

    def __init__(
        self, num_clients: int, i: Tensor, j: Tensor, values: Tensor, fill: float | bool = 0.0
    ) -> None:
        """`i`, `j` (E,) are sorted, by i and then by j, without doubles, and on the CPU; `values`
        has a number (E,) or a row (E, M) for each pair."""
        self.num_clients, self.fill = num_clients, fill
        self.i, self.j, self.values = i, j, values

    @classmethod
    def of(cls, matrix: "Matrix", fill: float | bool | None = None) -> "Edges":
        """The entries of a matrix that differ from `fill`: by default False for booleans, else 0.
        Edges stay as they are."""
        if isinstance(matrix, Edges):
            return matrix
        matrix = matrix.detach().cpu()
        if fill is None:
            fill = False if matrix.dtype == torch.bool else 0.0
        listed = ~matrix.isnan() if fill != fill else matrix != fill
        i, j = (listed.flatten(2).any(2) if listed.dim() > 2 else listed).nonzero(as_tuple=True)
        return cls(len(matrix), i, j, matrix[i, j], fill)

    @classmethod
    def complete(cls, num_clients: int, active: Tensor | None = None) -> "Edges":
        """All pairs, (i, i) included; between active clients only, if given."""
        ids = torch.arange(num_clients) if active is None else active.nonzero()[:, 0]
        i, j = ids.repeat_interleave(len(ids)), ids.repeat(len(ids))
        return cls(num_clients, i, j, torch.ones(len(i), dtype=torch.bool), False)

    @classmethod
    def none(cls, num_clients: int, fill: float | bool = False) -> "Edges":
        """No pair listed: `fill` everywhere."""
        kind = torch.bool if isinstance(fill, bool) else torch.float64
        nobody = torch.zeros(0, dtype=torch.int64)
        return cls(num_clients, nobody, nobody, torch.zeros(0, dtype=kind), fill)

    @classmethod
    def loops(cls, num_clients: int, clients: Tensor) -> "Edges":
        """(i, i) for the clients in (K,) bool."""
        ids = clients.nonzero()[:, 0]
        return cls(num_clients, ids, ids, torch.ones(len(ids), dtype=torch.bool), False)

    @classmethod
    def gathered(
        cls, num_clients: int, i: Tensor, j: Tensor, values: Tensor | None = None
    ) -> "Edges":
        """Pairs in any order; values of the same pair are added, sets hold it once."""
        keys, place = unique(i * num_clients + j, return_inverse=True)
        if values is None:
            summed, fill = torch.ones(len(keys), dtype=torch.bool), False
        else:
            summed, fill = values.new_zeros(len(keys)).index_add_(0, place, values), 0.0
        return cls(num_clients, keys // num_clients, keys % num_clients, summed, fill)

    def dense(self, fill: float | bool | None = None) -> Tensor:
        """The matrix (K, K), or (K, K, M) where each pair has a row of numbers.

        Raises:
            ConfigError: it would be too large.
        """
        k = self.num_clients
        if k > MOST:
            raise ConfigError(
                f"a graph of {k} clients does not fit into a matrix: read its edges (i, j, values)"
            )
        shape = (k, k, *self.values.shape[1:])
        out = self.values.new_full(shape, self.fill if fill is None else fill)
        out[self.i, self.j] = self.values
        return out

    def on(self, values: Tensor, fill: float | bool = 0.0) -> "Edges":
        """The same pairs with other values (E,)."""
        return Edges(self.num_clients, self.i, self.j, values, fill)

    @property
    def count(self) -> int:
        """E, how many pairs are listed."""
        return len(self.i)

    @cached_property
    def is_thin(self) -> bool:
        """Whether sums over the pairs are faster than a product with the matrix."""
        return self.count <= THIN * self.num_clients**2

    @cached_property
    def keys(self) -> Tensor:
        """(E,) i * K + j, ascending."""
        return self.i * self.num_clients + self.j

    @cached_property
    def degrees(self) -> Tensor:
        """(K,) listed pairs of each receiver."""
        return self.i.bincount(minlength=self.num_clients)

    @cached_property
    def ends(self) -> Tensor:
        """(K + 1,) where the pairs of each receiver begin and end."""
        return torch.cat([self.degrees.new_zeros(1), self.degrees.cumsum(0)])

    @cached_property
    def is_loop(self) -> Tensor:
        """(E,) bool: i = j."""
        return self.i == self.j

    def take(self, chosen: Tensor) -> "Edges":
        """Some pairs, by a mask (E,)."""
        if bool(chosen.all()):
            return self
        return Edges(
            self.num_clients, self.i[chosen], self.j[chosen], self.values[chosen], self.fill
        )

    def nonzero_pairs(self) -> "Edges":
        """Those whose value is not 0 (or not False)."""
        return self.take(self.values != 0)

    def among(self, active: Tensor) -> "Edges":
        """Those between two clients of (K,) bool."""
        return self if bool(active.all()) else self.take(active[self.i] & active[self.j])

    def find_keys(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The places in this list of pairs i * K + j in any order, and whether they are listed."""
        if not self.count:
            return torch.zeros_like(keys), torch.zeros_like(keys, dtype=torch.bool)
        place = torch.searchsorted(self.keys, keys).clamp_(max=self.count - 1)
        return place, self.keys[place] == keys

    def has(self, pairs: "Edges") -> Tensor:
        """(E of pairs,) bool: which of them are listed here."""
        return self.find_keys(pairs.keys)[1]

    def lookup(self, pairs: "Edges") -> Tensor:
        """(E of pairs,) the values at other pairs; `fill` where they are not listed."""
        if pairs.i is self.i and pairs.j is self.j:
            return self.values
        if not self.count:
            return self.values.new_full((pairs.count, *self.values.shape[1:]), self.fill)
        if torch.equal(pairs.i, self.i) and torch.equal(pairs.j, self.j):
            return self.values
        place, found = self.find_keys(pairs.keys)
        found = found.view(-1, *[1] * (self.values.dim() - 1))
        return self.values[place].masked_fill(~found, self.fill)

    def within(self, pairs: "Edges") -> "Edges":
        """Those that are listed in `pairs`, too."""
        return self.take(pairs.has(self))

    def updated(self, newer: "Edges") -> "Edges":
        """Pairs of both; where both list one, the newer value counts."""
        if not self.count:
            return newer
        older = self.take(~newer.has(self))
        order = torch.cat([older.keys, newer.keys]).sort()
        i = torch.cat([older.i, newer.i])[order.indices]
        j = torch.cat([older.j, newer.j])[order.indices]
        values = torch.cat([older.values, newer.values])[order.indices]
        return Edges(self.num_clients, i, j, values, newer.fill)

    def transposed(self) -> tuple["Edges", Tensor]:
        """j -> i, and the place (E,) that each of its pairs has here."""
        order = self.j.sort(stable=True).indices
        back = Edges(self.num_clients, self.j[order], self.i[order], self.values[order], self.fill)
        return back, order

    def top(self, count: int) -> Tensor:
        """(E,) bool: the `count` largest values of each receiver; of equals the smaller j."""
        if count <= 0:
            return torch.zeros(self.count, dtype=torch.bool)
        if int(self.degrees.max()) <= count:
            return torch.ones(self.count, dtype=torch.bool)
        order = self.values.double().sort(descending=True, stable=True).indices
        order = order[self.i[order].sort(stable=True).indices]
        rank = torch.arange(self.count) - self.ends[self.i]  # i[order] is i: receiver by receiver
        return torch.empty_like(order, dtype=torch.bool).index_put_((order,), rank < count)

    def loop_values(self) -> Tensor:
        """(K,) the diagonal."""
        out = self.values.new_full((self.num_clients,), self.fill)
        out[self.i[self.is_loop]] = self.values[self.is_loop]
        return out

    def row_sums(self, values: Tensor | None = None) -> Tensor:
        """(K,) sums over the sources of each receiver, of other values (E,) or (E, M) if given."""
        values = self.values if values is None else values
        return values.new_zeros(self.num_clients, *values.shape[1:]).index_add_(0, self.i, values)

    def column_sums(self, values: Tensor) -> Tensor:
        """(K,) or (K, M) sums over the receivers of each source."""
        return values.new_zeros(self.num_clients, *values.shape[1:]).index_add_(0, self.j, values)

    def row_softmax(self) -> Tensor:
        """(E,) the log softmax over the sources of each receiver."""
        most = self.values.new_full((self.num_clients,), -torch.inf)
        most = most.scatter_reduce(0, self.i, self.values, "amax")
        shifted = self.values - most[self.i]
        return shifted - self.row_sums(shifted.exp()).log()[self.i]

    def sum_rows(self, x: Tensor) -> Tensor:
        """(K, M) sum_j v_ij x_j of rows (K, M), on their device."""
        if not self.is_thin:
            return self.dense(0.0) @ x
        out, size = torch.zeros_like(x), max(1, BLOCK // max(1, x.shape[1]))
        for i, j, values in parts(size, self.i, self.j, self.values):
            out.index_add_(0, i.to(x.device), values[:, None] * x[j])
        return out

    def forms(self, a: Tensor, b: Tensor) -> Tensor:
        """(E,) <a_i, b_j> for rows (K, M)."""
        if not self.is_thin:
            return (a @ b.T)[self.i, self.j]
        size = max(1, BLOCK // max(1, a.shape[1]))
        return torch.cat([(a[i] * b[j]).sum(1) for i, j in parts(size, self.i, self.j)])

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.num_clients, self.num_clients))

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def __len__(self) -> int:
        return self.num_clients

    def __repr__(self) -> str:
        return f"Edges({self.num_clients} clients, {self.count} pairs, fill={self.fill})"

    def __getattr__(self, name: str) -> Any:
        _refuse(name)

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any, **__: Any) -> Any:
        _refuse(f"function {getattr(function, '__name__', function)}")


def _refuse(name: str) -> NoReturn:
    raise AttributeError(
        f"Edges have no {name}: read the listed pairs (.i, .j, .values), or ask for the matrix "
        "with .dense()"
    )


def _refuse_operator(edges: Edges, name: str, *_: object) -> NoReturn:
    _refuse(f"operator {name}")


OPERATORS = (
    "add radd sub rsub mul rmul truediv matmul rmatmul and or invert neg getitem lt le gt ge"
)
for _name in OPERATORS.split():  # what a matrix has; == says whether it is the same object
    setattr(Edges, f"__{_name}__", partialmethod(_refuse_operator, _name))


Matrix: TypeAlias = Edges | Tensor
"""A number for every pair of clients, as a matrix or as the list of those that matter."""


def values_at(matrix: Matrix, pairs: Edges) -> Tensor:
    """(E,) the numbers of these pairs."""
    return matrix.lookup(pairs) if isinstance(matrix, Edges) else matrix.cpu()[pairs.i, pairs.j]


def as_matrix(graph: Matrix) -> Tensor:
    """The matrix of a graph, for pictures and for few clients."""
    return graph.dense() if isinstance(graph, Edges) else graph
