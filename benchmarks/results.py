"""One table of all that was measured, made of the data of each study; do the pages agree with it?

The data of a study are one file: `runs.csv` of packed runs, `results.jsonl` of `scool compare
--json`, or the `NAME.csv` of a contest (`scool reproduce natural`). `write` makes
`docs/all-results.md` of them, a row per method, data set and length. `check` says where that page,
or a number on one of `PAGES`, does not follow from the data.

What counts as a number of a page is said in `page_numbers.py`.
"""

import argparse
import csv
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))  # where this file is run by others
from contest_pages import wrong_on_contest_pages  # noqa: E402
from page_numbers import OPTION, Row, paper_values, titles_of_methods, wrong_numbers  # noqa: E402

PAGE = "docs/all-results.md"
ABOUT_RESULTS = (
    *("docs/results.md", "docs/reproduction.md", "docs/reproduction/*.md"),
    *("docs/ablations.md", "docs/ablations/*.md"),
)
WITH_OPTIONS = ("README.md", "docs/demo.md", "docs/methods.md", "docs/methods/*.md")
PAGES = (*ABOUT_RESULTS, *WITH_OPTIONS)
CONTESTS = {name: (f"docs/{name}.md", f"docs/{name}/*.md") for name in ("natural", "field")}
NOTHING = "–"

MEANS = {
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
    for path in sorted(root.glob("*/results.jsonl")):
        rows += _of_comparison(path.parent.name, path)
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
            for ours, theirs in MEANS.items()
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


def _of_comparison(study: str, path: Path) -> Iterator[Row]:
    """Lines of other programs, which do not say their seeds, are passed over."""
    for run in map(json.loads, path.read_text().splitlines()):
        if run.get("seeds") and run.get("accuracy_mean") is not None:
            what = run.get("row", run["method"])
            yield {
                "study": study,
                "data": f"{run['dataset']}, {run['clients']} clients",
                "row": what if what == run["method"] else f"{what} ({run['method']})",
                "names": {what, run["method"]},
                "metric": "accuracy",
                "sign": 1,
                "seeds": len(run["seeds"]),
                "mean": run["accuracy_mean"],
                "std_seeds": run.get("std_over_seeds"),
                "std_clients": run["accuracy_std"],
                "epochs": float(run["epochs"]),
                "bytes": float(run["bytes_sent"]),
                "seconds": run["seconds"],
                "device": f"cpu, {run['rounds']} rounds",
            }


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
                for name in MEANS
                if (known := [r for r in several if r.get(name) is not None])
            },
        }
        for several in groups.values()
        if len(several) > 1
    ]


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


def check(root: Path, rows: Sequence[Row]) -> list[str]:
    """What on the pages does not follow from the data."""
    place = root / PAGE
    is_true = place.is_file() and place.read_text() == page(rows)
    words = [] if is_true else [f"{PAGE} is old: python benchmarks/results.py write"]
    known, paper, titles = [*rows, *_pooled(rows)], paper_values(), titles_of_methods()
    for path in sorted({path for name in PAGES for path in root.glob(name)}):
        place = path.relative_to(root)
        is_about, has_options = (
            any(place.match(name) for name in names) for names in (ABOUT_RESULTS, WITH_OPTIONS)
        )
        least = OPTION if has_options else 0
        found = wrong_numbers(path.read_text(), known, paper, titles, is_about, least)
        words += [f"{place.as_posix()}: {one}" for one in found]
    for name, pages in CONTESTS.items():
        words += wrong_on_contest_pages(root, name, pages)
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
