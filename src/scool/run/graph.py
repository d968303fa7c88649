"""The learned graph as people use it: to look at, to index, to export."""

import copy
import csv
import re
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from scool.errors import need
from scool.recording.disk import write_bytes

if TYPE_CHECKING:
    from scool.display.style import Picture

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML file may hold, be they escaped or not."""


@final
class Graph(Tensor):
    """(K, K) mixing weights: `graph[i, j]` says how much client i learns from client j.

    It is a tensor in every way; what is computed from it is a plain tensor.

    >>> graph = Graph.of(torch.tensor([[0.5, 0.5], [0.0, 1.0]]))
    >>> type(graph[0]).__name__, graph.sum(dim=1).tolist()
    ('Tensor', [1.0, 1.0])
    >>> sorted(graph.to_networkx().edges(data="weight"))
    [(0, 0, 0.5), (0, 1, 0.5), (1, 1, 1.0)]
    """

    # Operations get a plain tensor and return one.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    title: str
    client_names: tuple[str, ...] | None
    groups: Tensor | None
    classes: Tensor | None

    @classmethod
    def of(
        cls,
        w: Tensor,
        title: str = "",
        client_names: tuple[str, ...] | None = None,
        groups: Tensor | None = None,
        classes: Tensor | None = None,
    ) -> "Graph":
        """Weights with the names, the true groups (K,) and the classes (K, C) of the clients, where
        known."""
        graph = w.detach().cpu().as_subclass(cls)
        graph.title, graph.client_names = title, client_names
        graph.groups, graph.classes = groups, classes
        return graph

    def __deepcopy__(self, memo: dict[int, Any]) -> "Graph":
        about = (self.title, self.client_names, self.groups, self.classes)
        return Graph.of(self.as_subclass(Tensor).clone(), *copy.deepcopy(about, memo))

    def _names(self) -> list[str]:
        return list(self.client_names or map(str, range(len(self))))

    def plot(self) -> "Picture":
        """A heat map, a matplotlib figure; clients of a true group, or with the same classes, stand
        side by side."""
        from scool.display.matrices import graph_picture, plain
        from scool.display.order import shown_order

        order, by = shown_order(self.groups, self.classes, len(self))
        return graph_picture(self, order, plain(self.title), by, self.client_names)

    def to_pandas(self) -> Any:
        """A pandas table: rows learn from columns."""
        pandas = need("pandas", "to_pandas")
        names = self._names()
        return pandas.DataFrame(self.numpy(), index=names, columns=names)

    def to_networkx(self) -> Any:
        """A networkx graph: an edge i -> j with its `weight` where i learns from j."""
        networkx = need("networkx", "to_networkx")
        graph = networkx.DiGraph()
        for client, name in enumerate(self._names()):
            group = {} if self.groups is None else {"group": int(self.groups[client])}
            graph.add_node(client, name=name, **group)
        for i, j in self.nonzero().tolist():
            graph.add_edge(i, j, weight=float(self[i, j]))
        return graph

    def write_graphml(self, path: str | Path) -> Path:
        """GraphML, which Gephi, Cytoscape, yEd and igraph read."""
        networkx = need("networkx", "write_graphml")
        graph = self.to_networkx()
        for _, about in graph.nodes(data=True):
            about["name"] = _NOT_XML.sub("\ufffd", about["name"])
        text = "\n".join(networkx.generate_graphml(graph))
        write_bytes(Path(path), (text + "\n").encode())
        return Path(path)

    def write_csv(self, path: str | Path) -> Path:
        """One line per edge: client, from, weight; clients by name where they have names."""
        names, text = self._names(), StringIO(newline="")
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(["client", "from", "weight"])
        lines.writerows([names[i], names[j], float(self[i, j])] for i, j in self.nonzero().tolist())
        write_bytes(Path(path), text.getvalue().encode())
        return Path(path)

    def _repr_html_(self) -> str:
        from scool.display.html import inline

        return inline(self.plot(), f"Who learns from whom, {len(self)} clients. {self.title}")
