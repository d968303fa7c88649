"""What a comparison gives back: every result, and one line per method."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scool.columns import COLUMNS
from scool.data.federation import Federation
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

    @property
    def methods(self) -> list[str]:
        return list(self.results)

    @property
    def seeds(self) -> list[int]:
        return list(next(iter(self.results.values())))

    @property
    def federation(self) -> Federation:
        """Of the first seed."""
        return next(iter(next(iter(self.results.values())).values())).federation

    @property
    def title(self) -> str:
        seeds = f", mean of {len(self.seeds)} seeds" if len(self.seeds) > 1 else ""
        return f"{self.federation.name}, {self.federation.num_clients} clients{seeds}"

    def __getitem__(self, method: str) -> Mapping[int, Outcome]:
        return self.results[method]

    def folders(self) -> Iterator[Path]:
        """The run folders of the methods that did not diverge."""
        for runs in self.results.values():
            yield from (r.run_dir for r in runs.values() if isinstance(r, Result) and r.run_dir)

    def summary(self) -> list[dict[str, Any]]:
        """One line per method, as `scool compare --json` prints it."""
        return [summarise(list(runs.values())) for runs in self.results.values()]

    def table(self) -> Any:
        """A pandas table with a row per method: scores and costs, means over the seeds."""
        import pandas as pd

        from scool.display.tables import comparison_columns

        rows = self.summary()
        return pd.DataFrame(rows, columns=["method", *comparison_columns(rows)]).set_index("method")

    def to_csv(self, path: str | Path) -> Path:
        """Write `table()` as a CSV file; its path."""
        self.table().to_csv(path)
        return Path(path)

    def __repr__(self) -> str:
        from scool.display.tables import comparison_text

        return comparison_text(self.summary(), self.title)

    def _repr_html_(self) -> str:
        return self.table().to_html()


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
    """What a method reports that stops single clients when they diverge (`diverged` in Info)."""
    last = result.history[-1] if isinstance(result, Result) and result.history else {}
    count, everyone = int(last.get("diverged") or 0), result.federation.num_clients
    return f"{count} of {everyone} clients stopped" if count else None
