"""What became of a simulated run: who took part when, and how it compares with one process that has
all clients."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from scool.columns import human_bytes
from scool.data.arrays import from_arrays
from scool.errors import RunError
from scool.evaluation.scores import adjusted_rand, communities
from scool.graph.edges import as_matrix
from scool.peer.agreement import Agreement
from scool.peer.simulate import Plan, Watched
from scool.recording.folder import TIMING, RunFolder
from scool.run.load import load_model
from scool.run.loop import fit
from scool.run.result import Result

TOOK_PART, NOT_BY_ALL, AWAY = "#", "o", "."
POINT = 1.0  # percent of accuracy, or a hundredth of another score, that faults may cost
GROWTH = 1.25  # by which a process may grow after the first quarter of the rounds


@dataclass(frozen=True)
class Summary:
    """What `--json` prints."""

    method: str
    mode: str
    peers: int
    rounds: int
    strips: list[str]  # per peer, a sign per round
    rounds_missed: int  # peers times rounds
    healed: list[int | None]  # per cut, the rounds until all took part again; None: they never did
    score: float  # mean over peers
    simulator: float
    ari: float | None  # of the graph whose rows are the peers' own, to the true groups
    simulator_ari: float | None
    disagreement: float  # the largest difference between two peers' views of the last graph
    seconds: float
    median_round: float
    longest_round: float  # of those that `undisturbed` leaves
    simulator_round: float
    received: int
    ledger: int
    memory: int  # bytes of the largest process at its end
    growth: float  # of the memory of the process that grew most
    failures: list[str]


@final
class Outcome:
    """The run folders of all peers, side by side."""

    def __init__(self, plan: Plan, watched: Watched, groups: Tensor | None) -> None:
        self._plan, self._watched, self._groups = plan, watched, groups
        self._folders = [RunFolder.open(folder / "run") for folder in watched.folders]
        self._rows = [folder.rows() for folder in self._folders]
        self.agreement = Agreement.read(watched.folders[0])

    @cached_property
    def simulated(self) -> Result:
        """The same owners in one process, without faults."""
        agreement, threads = self.agreement, torch.get_num_threads()
        clients = [dict(np.load(folder / "data.npz")) for folder in self._watched.folders]
        is_class = agreement.task == "classification"
        torch.set_num_threads(1)
        try:
            return fit(
                from_arrays(
                    clients,
                    task="classification" if is_class else "regression",
                    num_classes=agreement.outputs if is_class else None,
                ),
                agreement.builder(self._watched.folders[0]),
                agreement.build_method(),
                rounds=agreement.rounds,
                seed=agreement.seed,
                device="cpu",
                verbose=False,
            )
        finally:
            torch.set_num_threads(threads)

    @property
    def strips(self) -> list[str]:
        """Per peer a sign for each round."""
        away = [
            {row["round"] for row in rows if i in row.get("absent", ())}
            for i, rows in enumerate(self._rows)
        ]

        def sign(place: int, round: int) -> str:
            if round in away[place] or round >= len(self._rows[place]):
                return AWAY
            others = [
                rows[round]
                for other, rows in enumerate(self._rows)
                if other != place and round < len(rows) and round not in away[other]
            ]
            is_seen = all(place not in row.get("absent", ()) for row in others)
            return TOOK_PART if is_seen else NOT_BY_ALL

        rounds = range(self.agreement.rounds)
        return ["".join(sign(place, t) for t in rounds) for place in range(len(self._rows))]

    def summary(self) -> Summary:
        graphs = [
            as_matrix(f.read_graph(len(r) - 1))
            for f, r in zip(self._folders, self._rows, strict=True)
        ]
        composed = torch.stack([graph[i] for i, graph in enumerate(graphs)])
        sure = torch.stack(graphs).amax(0) - torch.stack(graphs).amin(0)
        strips, expected = self.strips, self.simulated
        calm = [
            row["seconds"]
            for i, folder in enumerate(self._folders)
            for row in folder.rows(TIMING)
            if row["round"] in undisturbed(strips[i], self._own_faults(i))
        ]
        if not calm:
            raise RunError("no round passed without faults: plan more rounds, or fewer faults")
        sizes = self._watched.memory.values()
        last = [rows[-1]["scores"][i] for i, rows in enumerate(self._rows)]
        agreement = self.agreement
        return Summary(
            agreement.method,
            agreement.mode,
            len(self._rows),
            agreement.rounds,
            strips,
            sum(strip.count(AWAY) for strip in strips),
            healing(strips, [f.round for f in self._plan.faults if f.kind == "cut"]),
            float(np.mean(last)),
            float(expected.score.mean()),
            self._ari(composed),
            self._ari(as_matrix(expected.graphs[agreement.rounds - 1])),
            float(sure.max()) if agreement.build_method().learns_graph else 0.0,
            round(self._watched.seconds, 3),
            round(float(np.median(calm)), 4),
            round(max(calm), 3),
            round(expected.seconds / agreement.rounds, 4),
            self._watched.received,
            sum(row["bytes"] for row in expected.history),
            max((end for _, end in sizes), default=0),
            round(max((end / max(start, 1) for start, end in sizes), default=1.0), 3),
            self._watched.failures,
        )

    def _own_faults(self, place: int) -> set[int]:
        """The rounds in which a peer was killed or put to sleep."""
        faults = [fault for fault in self._plan.faults if fault.kind != "cut"]
        return {fault.round for fault in faults if place in fault.peers}

    def _ari(self, graph: Tensor) -> float | None:
        if self._groups is None:
            return None
        found = communities(graph.double(), int(self._groups.unique().numel()))
        return round(adjusted_rand(found, self._groups), 4)

    def failures(self, found: Summary) -> list[str]:
        """What `--check` finds wrong, in words."""
        wrong = list(found.failures)
        if agreement := self.agreement:
            last = agreement.rounds - 1
            wrong += [
                f"peer {i} missed the last round"
                for i, strip in enumerate(found.strips)
                if strip[last] == AWAY
            ]
        if self.agreement.mode == "strict":
            return wrong + self._differences()
        point = POINT if self.agreement.task == "classification" else POINT / 100
        if found.score < found.simulator - point:
            wrong.append(
                f"the score is {found.score:.2f}, that of the simulator {found.simulator:.2f}"
            )
        if found.ari is not None and found.ari < (found.simulator_ari or 0.0):
            wrong.append(
                f"the graph has ARI {found.ari}, that of the simulator {found.simulator_ari}"
            )
        limit = self.agreement.deadline + 10 * found.median_round + 1.0
        if found.longest_round > limit:
            wrong.append(
                f"a round took {found.longest_round:.1f} s, with a deadline of "
                f"{self.agreement.deadline:g} s"
            )
        if lasting := found.healed.count(None):
            wrong.append(f"{lasting} of {len(found.healed)} cuts did not heal before the next one")
        is_same = found.rounds >= 40 and not self._plan.newcomers  # more members need more memory
        if found.growth > GROWTH and is_same:
            wrong.append(f"the memory of a process grew by a factor of {found.growth:.2f}")
        return wrong

    def _differences(self) -> list[str]:
        """Strict: whose model or row of the graph is not that of the simulator to the bit."""
        wrong: list[str] = []
        graph = as_matrix(self.simulated.graphs[self.agreement.rounds - 1])
        for place, folder in enumerate(self._folders):
            model = load_model(folder.path).network.state_dict()
            theirs = self.simulated.model(place).state_dict()
            row = as_matrix(folder.read_graph(self.agreement.rounds - 1))[place]
            is_same = all(torch.equal(model[name], t) for name, t in theirs.items())
            if not (is_same and torch.equal(row, graph[place])):
                wrong.append(f"peer {place} differs from the simulator")
        return wrong


def undisturbed(strip: str, faults: Collection[int]) -> set[int]:
    """The rounds that no fault of the peer's own made longer: not the first, none in which one may
    have begun, and none beside one that it was away from.

    >>> sorted(undisturbed("##########..###", {7}))
    [1, 2, 3, 4, 13, 14]
    """
    rounds = range(1, len(strip))
    near = {t + shift for t in faults for shift in range(-2, 3)}
    return {t for t in rounds if t not in near and AWAY not in strip[t - 1 : t + 2]}


def healing(strips: Sequence[str], cuts: Sequence[int]) -> list[int | None]:
    """Per cut, which begins in such a round, the rounds until all see all again; 0 where that never
    ceased, None where it did for good, or until the next cut.

    >>> healing(["####oo####oo", "####.o####oo"], [1, 3, 9])
    [0, 3, None]
    >>> healing(["####", "####"], [])
    []
    """
    is_whole = [set(signs) == {TOOK_PART} for signs in zip(*strips, strict=True)]
    found: list[int | None] = []
    for first, end in zip(cuts, [*cuts, len(is_whole)][1:], strict=True):
        broken = next((t for t in range(first, end) if not is_whole[t]), first)
        found.append(next((t - first for t in range(broken, end) if is_whole[t]), None))
    return found


def as_json(found: Summary) -> dict[str, Any]:
    return asdict(found)


def as_text(found: Summary, wrong: Sequence[str]) -> str:
    """For people."""
    lines = [f"{TOOK_PART} took part, {NOT_BY_ALL} not seen by all, {AWAY} away"]
    lines += [f"  peer {i:<3d} {strip}" for i, strip in enumerate(found.strips)]
    both = f"{found.score:.2f}, simulator {found.simulator:.2f}"
    lines.append(
        f"score {both}; rounds missed {found.rounds_missed} of {found.peers * found.rounds}"
    )
    if found.healed:
        whole = ", ".join("never" if t is None else str(t) for t in found.healed)
        lines.append(f"rounds from each cut until all took part again: {whole}")
    if found.ari is not None:
        lines.append(
            f"ARI of the graph {found.ari:g}, simulator {found.simulator_ari:g}; peers' "
            f"views of it differ by at most {found.disagreement:.1e}"
        )
    lines.append(
        f"round {found.median_round:.3f} s (longest without a fault of one's own "
        f"{found.longest_round:.2f}), simulator {found.simulator_round:.3f} s"
    )
    share = f"{found.received / found.ledger:.2f} of" if found.ledger else "ledger"
    lines.append(
        f"received {human_bytes(found.received)}, {share} the ledger's {human_bytes(found.ledger)}"
    )
    lines.append(
        f"a process held {human_bytes(found.memory)} at most, and grew {found.growth:.2f} times "
        "after a quarter of the rounds"
    )
    lines += [f"WRONG: {words}" for words in wrong]
    return "\n".join(lines)
