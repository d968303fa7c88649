"""The result of a comparison: every single result, and one line per method."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from scool.columns import COLUMNS
from scool.data.federation import Federation
from scool.errors import require, unknown
from scool.evaluation.paired import Paired, listed, paired_difference
from scool.evaluation.scores import finite
from scool.recording.disk import write_bytes, write_json
from scool.run.result import Result
from scool.sweep.runner import Diverged

Outcome = Result | Diverged


@dataclass(frozen=True, repr=False)
class ComparisonResult:
    """Several methods on the same clients, with the same seeds."""

    results: Mapping[str, Mapping[int, Outcome]]
    """`results["local"][0]`: the result of a method with a seed."""
    out: Path | None = None
    """The folder of the records, which `scool report` and `scool ls` read."""
    alone: str | None = None
    """The method whose clients train alone, which the others are compared with."""

    @property
    def methods(self) -> list[str]:
        return list(self.results)

    @property
    def seeds(self) -> list[int]:
        return list(next(iter(self.results.values())))

    @property
    def federations(self) -> list[Federation]:
        """Of each seed, as the first method has it."""
        return [result.federation for result in next(iter(self.results.values())).values()]

    @property
    def has_same_clients(self) -> bool:
        """Whether client k is the same one in every seed, judged by the names: benchmarks deal out
        their data again with each seed."""
        first, *others = self.federations
        return all(
            other is first
            or (first.client_names is not None and other.client_names == first.client_names)
            for other in others
        )

    @property
    def title(self) -> str:
        first = self.federations[0]
        seeds = f", mean of {len(self.seeds)} seeds" if len(self.seeds) > 1 else ""
        return f"{first.name}, {first.num_clients} clients{seeds}"

    def __getitem__(self, method: str) -> Mapping[int, Outcome]:
        return self.results[method]

    def folders(self) -> Iterator[Path]:
        """The run folders of the methods that did not diverge."""
        for runs in self.results.values():
            yield from (r.run_dir for r in runs.values() if isinstance(r, Result) and r.run_dir)

    # ------------------------------------------------------------------ numbers

    def scores(self, method: str) -> Tensor:
        """(S, K) the score of each client with each seed; NaN where there is none."""
        widest = max(federation.num_clients for federation in self.federations)
        found = torch.full((len(self.seeds), widest), torch.nan, dtype=torch.float64)
        for row, result in zip(found, self.results[method].values(), strict=True):
            if isinstance(result, Result):
                row[: len(result.score)] = result.score
        return found

    def paired(self, method: str, other: str | None = None) -> Paired:
        """How much better off each client is with a method than with another one.

        Args:
            other: default: the method whose clients train alone.
        """
        other = self.alone if other is None else other
        for name in (method, other):
            if name not in self.results:
                known = ", ".join(self.methods)
                require(name is not None, "other", name, f"name one of {known}")
                unknown("method", str(name), self.methods)
        assert other is not None
        return paired_difference(
            self.scores(method),
            self.scores(other),
            same_clients=self.has_same_clients,
            seeds=self.seeds,
            names=self._names,
        )

    @property
    def _names(self) -> list[str]:
        """The clients of all seeds by name, or else number, as many for each seed."""
        widest = max(federation.num_clients for federation in self.federations)
        numbers = [str(k) for k in range(widest)]
        every = [
            [*names, *numbers[len(names) :]] if (names := federation.client_names) else numbers
            for federation in self.federations
        ]
        return [name for names in every for name in names]

    def summary(self) -> list[dict[str, Any]]:
        """One line per method, as `scool compare --json` prints it."""
        return [
            summarise(list(runs.values())) | self._spreads(method)
            for method, runs in self.results.items()
        ]

    def _spreads(self, method: str) -> dict[str, Any]:
        """The spread over seeds, and the gain over training alone with its own spreads."""
        means = self.scores(method).nanmean(dim=1)
        over_seeds = finite(means.std()) if len(means) > 1 else None
        versus = None
        if self.alone not in (None, method):
            versus = {"method": self.alone, **self.paired(method).to_dict()}
        return {"std_over_seeds": over_seeds, "vs_alone": versus}

    # ------------------------------------------------------------------ tables

    def table(self) -> Any:
        """A pandas table with a row per method: scores with their spreads, gains, costs."""
        import pandas as pd

        from scool.display.tables import comparison_columns

        rows = self.summary()
        names = ["method", *comparison_columns(rows)]
        return pd.DataFrame([flat(row) for row in rows], columns=names).set_index("method")

    def clients(self) -> Any:
        """A pandas table with a row per method, seed and client."""
        import pandas as pd

        parts = [
            self._clients_of(method, seed, row)
            for method, runs in self.results.items()
            for row, seed in enumerate(runs)
        ]
        return pd.concat(parts, ignore_index=True)

    def _clients_of(self, method: str, seed: int, row: int) -> Any:
        import pandas as pd

        result = self.results[method][seed]
        federation = result.federation
        count = federation.num_clients
        scores = self.scores(method)[row, :count]
        columns: dict[str, Any] = {
            "method": method,
            "seed": seed,
            "client": range(count),
            "name": federation.client_names or [str(k) for k in range(count)],
            "train_samples": federation.train.sizes.tolist(),
            "accuracy" if federation.task == "classification" else "r2": scores.tolist(),
        }
        last = result.history[-1] if isinstance(result, Result) and result.history else {}
        columns |= {name: values for name, values in (last.get("metrics") or {}).items()}
        if self.alone is not None:
            columns["vs_alone"] = (scores - self.scores(self.alone)[row, :count]).tolist()
        return pd.DataFrame(columns)

    def to_csv(self, path: str | Path, of: Literal["methods", "clients"] = "methods") -> Path:
        """Write `table()` or `clients()` as a CSV file; its path."""
        if of not in ("methods", "clients"):
            unknown("table", of, ("methods", "clients"))
        text = self.table().to_csv() if of == "methods" else self.clients().to_csv(index=False)
        write_bytes(Path(path), text.encode())
        return Path(path)

    def write(self) -> None:
        """Write tables beside the records: `summary.csv` and `summary.json` with a line per
        method, `compare.csv` with a line per method, seed and client."""
        if self.out is None:
            return
        self.to_csv(self.out / "summary.csv")
        self.to_csv(self.out / "compare.csv", of="clients")
        write_json(self.out / "summary.json", {"methods": self.summary()})

    def worse_off(self) -> list[str]:
        """The clients that each method serves worse than training alone, by name, the worst
        first."""
        if self.alone is None or self.federations[0].client_names is None:
            return []
        notes: list[str] = []
        for method in self.methods:
            if names := self.paired(method).names_worse:
                notes.append(f"worse off with {method}: {listed(names)}")
        return notes

    def __repr__(self) -> str:
        from scool.display.tables import comparison_text

        return comparison_text(self.summary(), self.title, self.worse_off())

    def _repr_html_(self) -> str:
        return self.table().to_html()


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the summary without tables in it: the gain over training alone as numbers."""
    versus = row.get("vs_alone") or {}
    ends = {
        f"vs_alone_{end}_over_{what}": value
        for what in ("clients", "seeds")
        for end, value in zip(("low", "high"), versus.get(f"over_{what}") or (), strict=False)
    }
    gain = {"vs_alone_mean": versus.get("mean"), "worse_off": versus.get("worse")}
    share, who = versus.get("share_worse"), "; ".join(versus.get("names_worse") or ())
    gain |= {"compared": versus.get("clients"), "share_worse": share, "names_worse": who}
    return {**row, **gain, **ends}


def summarise(results: Sequence[Outcome]) -> dict[str, Any]:
    """One method over its seeds: means of the numbers, all run folders."""
    summaries: list[dict[str, Any]] = [{"diverged": _stopped(r)} | r.summary() for r in results]
    if len(summaries) == 1:
        return summaries[0]
    merged = dict(summaries[0])
    for name in sorted({name for s in summaries for name in s}):
        values: list[Any] = [s.get(name) for s in summaries]
        if name.endswith(("_mean", "_std")) or name in _MEANS:
            mean = None if None in values else sum(values) / len(values)
            is_whole = all(isinstance(value, int) for value in values)
            merged[name] = round(mean) if mean is not None and is_whole else mean
        elif name == "quarantined":
            merged[name] = {k: v for s in summaries for k, v in s[name].items()}
        elif name == "run_dir":
            merged["run_dirs"] = values
        elif name == "diverged":
            merged[name] = next((value for value in values if value), None)
    merged["seeds"] = [s["seed"] for s in summaries]
    return merged


_MEANS = {column.name for column in COLUMNS if column.name != "rounds"}


def _stopped(result: Outcome) -> str | None:
    """Counts of stopped clients, for methods that report them (`diverged` in Info)."""
    last = result.history[-1] if isinstance(result, Result) and result.history else {}
    count, everyone = int(last.get("diverged") or 0), result.federation.num_clients
    return f"{count} of {everyone} clients stopped" if count else None
