"""The numbers of a contest as Markdown, CSV and JSON."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from scool.columns import human_bytes
from scool.contest.numbers import Row
from scool.contest.plan import ALONE, Setting, Study
from scool.display.figure import as_csv
from scool.evaluation.advice import WORDS as WORDS_OF_KINDS
from scool.evaluation.paired import listed
from scool.sweep.search import words

FORMAT = "scool-contest-1"
NOTHING = "–"
NAMED = 3
"""Owners that a cell names."""
WORDS = {"accuracy": "accuracy %", "auc": "AUC", "r2": "R2", "rmse": "RMSE (less is better)"}


def parts_of(
    study: Study, rows: Sequence[Row], overall: Sequence[Row], kinds: Sequence[Row] = ()
) -> dict[str, str]:
    """The tables by what they are about: `overall`, the `gains` over learning alone, the `owners`
    (what was chosen for them), and the `settings`."""
    chosen: list[str] = []
    for method in dict.fromkeys(row["method"] for row in kinds):
        own = [row for row in kinds if row["method"] == method]
        chosen += [f"### What `{method}` chose for the owners", kinds_table(own)]
    settings: list[str] = []
    for setting in study.settings:
        own = [row for row in rows if row["setting"] == setting.name]
        if own:
            settings += [
                f"### {setting.title}",
                setting_words(setting, own),
                setting_table(setting, own),
            ]
    several = len({row["setting"] for row in rows}) > 1
    return {
        "overall": overall_table(overall) if several else "",
        "gains": gains_table(study, rows) if several else "",
        "owners": "\n\n".join(chosen),
        "settings": "\n\n".join(settings),
    }


def as_markdown(parts: Mapping[str, str]) -> str:
    """All tables below each other."""
    return "\n\n".join(text for text in parts.values() if text) + "\n"


def setting_words(setting: Setting, rows: Sequence[Row]) -> str:
    """What was run, in a line or two."""
    seeds = max((len(row["seeds"]) for row in rows), default=0)
    clients = next((row["clients"] for row in rows if row["clients"]), 0)
    several = f", {setting.tuning_seeds} seeds each" if setting.tuning_seeds > 1 else ""
    said = (
        f"{clients} clients, {setting.rounds} rounds, {seeds} seed{'s' * (seeds > 1)}; "
        f"{WORDS.get(setting.metric, setting.metric)}; {setting.candidates} candidates a method"
        f"{several}."
    )
    told = (
        f"Published: {setting.source}. What differs here: {setting.differs}"
        if setting.source
        else ""
    )
    return " ".join(part for part in (said, setting.about, told) if part)


def setting_table(setting: Setting, rows: Sequence[Row]) -> str:
    """One line a method, the best first, controls last; columns that somebody has a number in."""
    order = sorted(rows, key=lambda row: (bool(row["control"]), row["rank"] or 0))
    lines = [_cells(row, setting.digits) for row in order]
    head = [name for name in lines[0] if any(line[name] != NOTHING for line in lines)]
    return _table(head, [[line[name] for name in head] for line in lines])


def _cells(row: Row, digits: int) -> dict[str, str]:
    mean = _number(row["mean"], digits)
    mean += f" ({row['problem']})" if row["problem"] else ""
    known = None not in (row["published"], row["mean"])
    return {
        "method": row["title"],
        "mean": mean,
        "published": _number(row["published"], digits),
        "− published": _signed(
            (row["mean"] or 0) - (row["published"] or 0) if known else None, digits
        ),
        "best round": _number(row["best"], digits),
        "masked": _number(row["masked"], digits),
        "± seeds": _number(row["std_seeds"], digits),
        "± owners": _number(row["std_clients"], digits),
        "worst tenth": _number(row["worst_tenth"], digits),
        "gain": _signed(row["gain"], digits),
        "95 % over seeds": _ends(row["gain_low"], row["gain_high"], digits),
        "95 % over owners": _ends(row["gain_clients_low"], row["gain_clients_high"], digits),
        "worse off": _share(row["worse"]) + _who(row["owners_worse"]),
        "beyond noise": _share(row["clearly_worse"]),
        "better beyond noise": _share(row["clearly_better"]),
        "rank": NOTHING if row["rank"] is None else f"{row['rank']:g}",
        "sent": NOTHING if row["bytes"] is None else human_bytes(row["bytes"]),
        "epochs": _number(row["epochs"], 0),
        "seconds": _number(row["seconds"], 1),
        "chosen": words(row["options"] or {}) or NOTHING,
    }


def overall_table(overall: Sequence[Row]) -> str:
    """One line per method over all settings, by mean rank."""
    head = [
        "method", "mean rank", "settings", "first", "below alone", "worse off", "beyond noise",
        "at most", "epochs",
    ]  # fmt: skip
    lines = [
        [
            row["title"],
            _number(row["rank"], 1),
            f"{row['settings']} of {row['of']}" if row["settings"] < row["of"] else str(row["of"]),
            str(row["first"]),
            str(row["below_alone"]),
            _share(row["worse"]),
            _share(row["clearly_worse"]),
            _share(row["most_worse"]),
            _number(row["epochs"], 0),
        ]
        for row in overall
    ]
    return _table(head, lines)


def gains_table(study: Study, rows: Sequence[Row]) -> str:
    """One line per setting: what some methods gain over learning alone, and the best method."""
    there = {row["method"] for row in rows}
    shown = [entry for entry in study.entries if entry.in_gains and entry.name in there]
    lines: list[list[str]] = []
    for setting in study.settings:
        own = {row["method"]: row for row in rows if row["setting"] == setting.name}
        ranked = [row for row in own.values() if row["rank"] is not None]
        if not ranked:
            continue
        best = min(ranked, key=lambda row: row["rank"])
        gains = [own[entry.name]["gain"] if entry.name in own else None for entry in shown]
        cells = [_signed(gain, setting.digits) for gain in gains]
        what = f"{setting.title}, {WORDS.get(setting.metric, setting.metric)}"
        gain = "" if best["method"] == ALONE else f" {_signed(best['gain'], setting.digits)}"
        lines.append([what, str(best["clients"]), *cells, f"{best['title']}{gain}"])
    head = ["gain over learning alone", "owners", *(entry.title for entry in shown), "best"]
    return _table(head, lines)


def kinds_table(kinds: Sequence[Row]) -> str:
    """One line per setting: the weights of the kinds of cooperation, who learns mostly alone, and
    what all that was worth on test data."""
    names = list(dict.fromkeys(name for row in kinds for name in row["weights"]))
    head = ["data", *(WORDS_OF_KINDS.get(name, name) for name in names)]
    head += ["mostly alone", "their gain", "under the best rival", "gain of the others"]
    head += ["under that rival", "foreseen and real gain"]
    lines = [
        [
            row["title"],
            *(_share(row["weights"].get(name)) for name in names),
            f"{row['alone']} of {row['owners']}",
            _signed(row["gain_alone"], row["digits"]),
            _signed(row["rival_alone"], row["digits"])
            + (f" ({row['rival']})" if row["rival_alone"] is not None else ""),
            _signed(row["gain_others"], row["digits"]),
            _signed(row["rival_others"], row["digits"])
            + (f" ({row['rival']})" if row["rival_others"] is not None else ""),
            _signed(row["rank_correlation"], 2),
        ]
        for row in kinds
    ]
    return _table(head, lines)


EXPLANATION = (
    "`mean` is over owners and seeds; `± seeds` is the standard deviation of the seeds' means, "
    "`± owners` that over owners, mean over seeds; `worst tenth` is the mean of the tenth of the "
    "owners that have least. `gain` is the mean difference to learning alone, owner by owner with "
    "the same seeds, positive where the method is better, with its 95 % intervals (Student's t) "
    "over seeds, for these owners, and over owners, for others like these. `worse off` are the "
    "owners whose mean gain over the seeds is below 0, the worst first by name; "
    "`beyond noise` those whose own interval lies below 0, `better beyond noise` those where it "
    "lies above. An owner's own interval is Student's t at 95 % over "
    "the seeds, its variance widened by the ratio r of test to training samples (1 / seeds + r in "
    "place of 1 / seeds; Nadeau and Bengio 2003), as the seeds split the same samples again. `at "
    "most` is the largest share beyond noise of the federations; `below alone` counts those where "
    "the whole interval of the mean gain over the seeds is below 0. Ranks are those of the means; "
    "controls have none. Sent, epochs and seconds are those of one run; epochs count every pass "
    "that gradients are taken of. Where models may answer all classes, `masked` is the accuracy "
    "among the classes that a client is tested on; `best round` is the best evaluated one, which "
    "some state in place of the last. What was chosen: the mean weight of each kind of cooperation "
    "over owners and seeds; `mostly alone` are the owners whose weight of learning alone is above "
    "one half; gains are means over those owners, beside what the rival with the best mean gives "
    "the same owners; `foreseen and real gain` is Spearman's rank correlation over the owners "
    "between the gain on held-out training samples and that on test data (of ten owners or more)."
)


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    right = ["---"] + ["---:"] * (len(head) - 1)
    if head[-1] == "chosen":
        right[-1] = "---"
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, right, *lines])


def _number(value: float | None, digits: int) -> str:
    if value is None:
        return NOTHING
    return f"{value:,.{digits}f}" if abs(value) < 1e6 else f"{value:.1e}"


def _signed(value: float | None, digits: int) -> str:
    if value is None:
        return NOTHING
    text = f"{value:+,.{digits}f}" if abs(value) < 1e6 else f"{value:+.1e}"
    return text.lstrip("+-") if not text.strip("+-0.") else text


def _ends(low: float | None, high: float | None, digits: int) -> str:
    return NOTHING if low is None else f"{_signed(low, digits)} to {_signed(high, digits)}"


def _who(names: Sequence[str] | None) -> str:
    return f": {listed(names, NAMED)}" if names else ""


def _share(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.0f} %"


def as_json(
    study: Study,
    rows: Sequence[Row],
    overall: Sequence[Row],
    notes: Sequence[str],
    kinds: Sequence[Row] = (),
) -> str:
    content = {
        "format": FORMAT,
        "study": study.name,
        "title": study.title,
        "settings": [_about(setting) for setting in study.settings],
        "rows": list(rows),
        "overall": list(overall),
        "kinds": list(kinds),
        "notes": list(notes),
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _about(setting: Setting) -> dict[str, Any]:
    return {name: value for name, value in vars(setting).items() if name != "device"}


def table_csv(rows: Sequence[Row]) -> str:
    """All numbers, unrounded."""
    flat = [
        {name: value for name, value in row.items() if not name.startswith("owner")}
        | {"options": words(row["options"] or {}), "seeds": " ".join(map(str, row["seeds"]))}
        for row in rows
    ]
    return as_csv(flat)
