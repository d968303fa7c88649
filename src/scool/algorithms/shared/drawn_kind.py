"""The kind `drawn` of the recommended method: SCooL with new peers in every round."""

from dataclasses import dataclass, fields, replace
from typing import Any, final

from scool.algorithms.between_rounds import with_between
from scool.algorithms.scool import SCooL
from scool.contracts import Method
from scool.errors import require
from scool.learning.losses import CrossDraw

OVERLAPPING = {"num_blocks": 1, "b_in": 0.2}  # of a graph of tasks that overlap: no blocks


@final
@dataclass(frozen=True)
class Drawn:
    """Options of the kind `drawn`: those in which `scool-drawn` differs from `scool-sbm`."""

    drawn_momentum: float = 0.5
    """Momentum over rounds of the kind `drawn`, 0 to below 1."""
    drawn_average: float = 0.8
    """Memory of its moving average of models, which it answers with, 0 to below 1."""
    drawn_fraction: float = 0.0
    """Peers that it draws per round, as a fraction of all clients; 0: as many as `graph` keeps."""
    drawn_noise: float = 0.0
    """Share of labels that its cross losses take for noise. Above 0 its graph has no blocks: for
    tasks that overlap."""

    def __post_init__(self) -> None:
        for name in ("drawn_momentum", "drawn_average", "drawn_noise"):
            value = getattr(self, name)
            require(0 <= value < 1, name, value, "give a number in [0, 1), 0 for none")
        value = self.drawn_fraction
        require(0 <= value <= 1, "drawn_fraction", value, "give a fraction, or 0")

    def method(self, graph: SCooL) -> Method[Any]:
        """The method `scool-drawn` where that of the kind `graph` is this one."""
        prior: Any = graph.prior
        if self.drawn_noise:
            own = {f.name for f in fields(prior)}
            prior = replace(prior, **{n: v for n, v in OVERLAPPING.items() if n in own})
        drawn = replace(
            graph,
            prior=prior,
            fraction=self.drawn_fraction or graph.fraction,
            draw=CrossDraw(cross_noise=self.drawn_noise),
            peers="drawn",
            aggregate="models",
        )
        return with_between(drawn, self.drawn_momentum, self.drawn_average)
