"""One table of all that was measured, made of the data of each study; do the pages agree with it?

The data of a study are one file: `runs.csv` of packed runs, or the `NAME.csv` of a contest (`scool
reproduce natural`). `write` makes `docs/all-results.md` of them, a row per method, data set and
length. `check` says where that page, or a number on one of `PAGES`, does not follow from the data.

Checked are numbers with a decimal point in table rows, list items and paragraphs that name a
method: rounded as it stands there, each must be a number of that method, ours or the paper's.
Options in code (`--lr 0.1`) are none. A comment exempts numbers and says why:
`<!-- not in the table: 4.4 2.7, differences by seed -->`.
"""

import argparse
import csv
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

HERE = Path(__file__).resolve().parent
PAGE, PAGES = "docs/all-results.md", ("docs/results.md", "docs/natural.md")
CONTESTS = ("natural", "field")
NOTHING = "–"

Row = dict[str, Any]
_MEANS = {
    "mean": "accuracy_mean",
    "std_clients": "accuracy_std",
    "unmasked": "unmasked_accuracy_mean",
    "epochs": "epochs",
    "bytes": "bytes",
    "seconds": "seconds",
}
HEAD = {
    "data": "data",
    "row": "method or row",
    "metric": "metric",
    "seeds": "seeds",
    "mean": "mean",
    "std_seeds": "± seeds",
    "std_clients": "± clients",
    "worst_tenth": "worst tenth",
    "unmasked": "unmasked",
    "epochs": "epochs",
    "bytes": "sent",
    "seconds": "seconds",
    "device": "device",
    "study": "study",
}


# ---------------------------------------------------------------------- the data


def all_rows(root: Path = HERE) -> list[Row]:
    """What every study measured, seeds together."""
    rows: list[Row] = []
    for path in sorted(root.glob("**/*.csv")):
        study = path.parent.relative_to(root).as_posix()
        if path.name == "runs.csv":
            rows += _of_runs(study, path)
        elif path.stem == study and study in CONTESTS:
            rows += _of_contest(study, path)
    return sorted(rows, key=lambda row: (row["data"], -(row["mean"] or 0) * row["sign"]))


def _of_runs(study: str, path: Path) -> Iterator[Row]:
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for run in _read(path):
        if run["status"] == "finished" and run["accuracy_mean"]:
            folder = re.sub(r"/?seed-\d+", "", run["run"])
            same = (run["dataset"], run["clients"], run["row"], run["method"], run["rounds_done"])
            groups[*same, run["device"], folder].append(run)
    for (data, clients, name, method, rounds, device, _), runs in groups.items():
        means = {
            ours: fmean(known) if (known := [float(r[theirs]) for r in runs if r[theirs]]) else None
            for ours, theirs in _MEANS.items()
        }
        scores = [float(run["accuracy_mean"]) for run in runs]
        yield {
            "study": study,
            "data": data + (f", {clients} clients" if clients != "100" else ""),
            "row": name if name == method else f"{name} ({method})",
            "names": {name, method},
            "metric": "accuracy",
            "sign": 1,
            "seeds": len({run["seed"] for run in runs}),
            "std_seeds": stdev(scores) if len(scores) > 1 else None,
            "worst_tenth": None,
            "device": f"{device}, {rounds} rounds",
            **means,
        }


def _of_contest(study: str, path: Path) -> Iterator[Row]:
    for run in _read(path):
        numbers = {name: _number(value) for name, value in run.items()}
        if numbers["mean"] is not None:
            yield {
                **numbers,
                "study": study,
                "data": run["setting"],
                "row": f"{run['title']} (control)" if run["control"] else run["title"],
                "names": {run["method"], run["title"]},
                "metric": run["metric"],
                "sign": -1 if run["metric"] in ("rmse", "log_loss") else 1,
                "seeds": len(run["seeds"].split()),
                "device": "tuned",
            }


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


# ---------------------------------------------------------------------- the page


WORDS = (
    "Every run that is recorded below `benchmarks/`, seeds together. A click on a heading sorts, "
    "the field filters. A row has the name of its runs, with the method in brackets where that is "
    "another; `mean` is over clients and seeds, `± seeds` the standard deviation of the seeds' "
    "means, `± clients` that over clients, mean over seeds. One seed proves nothing by itself. "
    "`python benchmarks/results.py write` makes this page."
)


def page(rows: Sequence[Row]) -> str:
    """The living table as Markdown; a script of the site lets readers sort and filter it."""
    lines = [
        "# All results",
        "",
        f"{len(rows)} rows. {WORDS}",
        "",
        '<div class="filtered"></div>',
        "",
        "| " + " | ".join(HEAD.values()) + " |",
        "| " + " | ".join("---:" if name in _RIGHT else "---" for name in HEAD) + " |",
    ]
    lines += ["| " + " | ".join(_cell(name, row.get(name)) for name in HEAD) + " |" for row in rows]
    return "\n".join(lines) + "\n"


_RIGHT = (
    *("seeds", "mean", "std_seeds", "std_clients", "worst_tenth", "unmasked"),
    *("epochs", "bytes", "seconds"),
)


def _cell(name: str, value: Any) -> str:
    if value is None or value == "":
        return NOTHING
    if name == "bytes":
        unit = max((u for u in range(5) if value >= 1000**u), default=0)
        return f"{value / 1000**unit:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[unit]}"
    if isinstance(value, float):
        return f"{value:,.0f}" if name in ("epochs", "seconds") else f"{value:.4g}"
    return str(value)


# ---------------------------------------------------------------------- the check


_DECIMAL = re.compile(r"(?<![\w.#/-])[+\u2212-]?\d[\d,]*\.\d+(?![\w.]*\w)")
_EXEMPT = re.compile(r"<!-- not in the table: (.*?) -->", re.DOTALL)
_OPTIONS = re.compile(r"`[^`]*--[^`]*`")


def wrong_numbers(
    text: str, rows: Sequence[Row], paper: Mapping[str, Sequence[float]]
) -> list[str]:
    """Numbers of a page that no row of the methods named beside them has."""
    known: dict[str, list[float]] = defaultdict(list)
    for row in [*rows, *_pooled(rows)]:
        for name in row["names"]:
            known[name.lower()] += _values(row)
    for name, values in paper.items():
        known[name] += values
    names = "|".join(re.escape(name) for name in sorted(known, key=len, reverse=True))
    is_named = re.compile(rf"(?<![\w-])({names})(?![\w-])", re.IGNORECASE)
    found: list[str] = []
    for part in _parts(text):
        own = [v for name in {n.lower() for n in is_named.findall(part)} for v in known[name]]
        exempt = {n for words in _EXEMPT.findall(part) for n in _DECIMAL.findall(words)}
        numbers = _DECIMAL.findall(_OPTIONS.sub("", _EXEMPT.sub("", part))) if own else ()
        found += [
            f"{number} in: {' '.join(part.split())[:90]}"
            for number in numbers
            if number not in exempt and not _is_among(number, own)
        ]
    return found


def _is_among(number: str, values: Sequence[float]) -> bool:
    """Whether one of the values is this number, rounded as it is, whatever its sign."""
    value = abs(float(number.strip("+-\u2212").replace(",", "")))
    near = 0.5 * 10.0 ** -len(number.partition(".")[2]) + 1e-9
    return any(abs(abs(one) - value) <= near for one in values)


def _pooled(rows: Sequence[Row]) -> list[Row]:
    """Rows of one name on the same data that are spread over studies, together."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["data"], row["row"]].append(row)
    return [
        {
            "names": several[0]["names"],
            **{
                name: sum(r[name] * r["seeds"] for r in known) / sum(r["seeds"] for r in known)
                for name in _MEANS
                if (known := [r for r in several if r.get(name) is not None])
            },
        }
        for several in groups.values()
        if len(several) > 1
    ]


def _parts(text: str) -> Iterator[str]:
    """Table rows, list items and paragraphs, without blocks of code."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for block in re.split(r"\n\s*\n", text):
        starts = re.split(r"\n(?=[|]|- )", block)
        yield from starts


def _values(row: Row) -> Iterator[float]:
    for name, value in row.items():
        if isinstance(value, float):
            yield value
            if name in ("worse", "clearly_worse", "clearly_better"):
                yield 100 * value


def paper_values() -> dict[str, list[float]]:
    """What the paper and its authors state, by row and by method."""
    from scool.reproduction.paper import DATASETS, SETTINGS, reported
    from scool.reproduction.rows import TABLE1

    found: dict[str, list[float]] = defaultdict(list)
    for row in TABLE1:
        said = [reported(row.name, data, setting) for data in DATASETS for setting in SETTINGS]
        values = [v for one in said if one for v in (one.mean, one.std_clients) if v is not None]
        for name in {row.name, row.method, row.title.lower()}:
            found[name] += values
    return found


def check(root: Path, rows: Sequence[Row]) -> list[str]:
    """What on the pages does not follow from the data."""
    place = root / PAGE
    is_true = place.is_file() and place.read_text() == page(rows)
    words = [] if is_true else [f"{PAGE} is old: python benchmarks/results.py write"]
    paper = paper_values()
    for name in PAGES:
        if (root / name).is_file():
            found = wrong_numbers((root / name).read_text(), rows, paper)
            words += [f"{name}: {one}" for one in found]
    return words


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="results.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("command", choices=("write", "check"))
    given = parser.parse_args(words)
    root, rows = HERE.parent, all_rows()
    if given.command == "write":
        (root / PAGE).write_text(page(rows))
        return 0
    wrong = check(root, rows)
    print("\n".join(wrong) or f"{len(rows)} rows: the pages agree with them")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
