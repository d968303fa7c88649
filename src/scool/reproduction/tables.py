"""The rows of a reproduction as Markdown, CSV, LaTeX and JSON."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from scool.columns import Column, shown
from scool.display.figure import as_csv
from scool.reproduction.measured import SAME_RUN
from scool.reproduction.plan import Study

Summary = Mapping[str, Any]
FORMAT = "scool-reproduction-1"


def as_markdown(target: str, study: Study, rows: Sequence[Summary], notes: Sequence[str]) -> str:
    """Tables for a page: one, or one a family of ablations; then what was run, and the notes."""
    nothing = "No change was measured together with the row that it is compared with."
    parts = [f"## {target}: {study.title}", EXPLANATION, family_tables(rows) or nothing]
    parts += ["### What was run", "\n".join(f"- {_protocol(row)}" for row in _once(rows))]
    if notes:
        parts += ["### Notes", "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def family_tables(rows: Sequence[Summary]) -> str:
    """One table, or one a family with its name above; families with nothing to compare are left
    out."""
    parts: list[str] = []
    for family in dict.fromkeys(row["family"] for row in rows):
        members = [row for row in rows if row["family"] == family]
        if family:
            members = _compared(members)
            parts += [f"### {family}"] if members else []
        if members:
            parts.append(markdown_table(members))
    return "\n\n".join(parts)


def _compared(family: Sequence[Summary]) -> list[Summary]:
    """The changes that were measured, and the rows that they are compared with."""
    changes = [row for row in family if row["against"]]
    if all(row["change_verdict"] == SAME_RUN for row in changes):
        return []
    references = {row["against"] for row in changes}
    return [row for row in family if row["against"] or row["row"] in references]


EXPLANATION = (
    "Test accuracy in percent after the last round, mean over clients and seeds. `± clients` is "
    "the standard deviation over clients, mean over seeds, as in the paper's table; `± seeds` is "
    "that of the seeds' means. `unmasked` is the accuracy where a model may answer with classes "
    "that the client does not have, of the seeds where it was measured, and in brackets what that "
    "changed on these seeds; a column `− row` is the difference to that row, seed by seed. A "
    "difference is within seed noise where it is smaller than half the width of its 95 % interval "
    "(Student's t; the paper's five seeds, of which no spread is known, are taken to vary as "
    "ours; what the authors state of their program counts as one seed). With one seed the noise is "
    "not known."
)


def markdown_table(rows: Sequence[Summary]) -> str:
    """One table, a line per row."""
    head, lines = _cells(rows)
    right = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, right, *lines])


def _cells(rows: Sequence[Summary]) -> tuple[list[str], list[list[str]]]:
    """The columns that a person reads; those of the paper, or of a comparison, where there are."""
    has_paper = any(row["paper"] is not None for row in rows)
    has_change = any(row["change"] is not None for row in rows)
    references = sorted({row["against"] for row in rows if row["against"]})
    has_unmasked = any(row["unmasked"] is not None for row in rows)
    head = ["method", "ours", "± clients", "± seeds", "seeds"]
    head += ["unmasked"] if has_unmasked else []
    head += ["paper", "± clients", "difference"] if has_paper else []
    if has_change:
        head += ["against", "change"] if len(references) > 1 else [f"− {references[0]}"]
    numbers = [c for c in shown("paper") if any(row[c.name] is not None for row in rows)]
    head += [column.words.removeprefix("graph ") for column in numbers]
    lines: list[list[str]] = []
    for row in rows:
        line = [row["title"], _ours(row), number(row["std_clients"]), number(row["std_seeds"])]
        line.append(str(len(row["seeds"])))
        line += [_unmasked(row)] if has_unmasked else []
        if has_paper:
            said = row["paper"] if isinstance(row["paper"], str) else number(row["paper"])
            line += [said, number(row["paper_std_clients"])]
            line.append(_judged(row["difference"], row["verdict"]))
        if has_change:
            line += [row["against"] or "–"] if len(references) > 1 else []
            line.append(_judged(row["change"], row["change_verdict"]))
        lines.append(line + [_told(column, row[column.name]) for column in numbers])
    return head, lines


def _told(column: Column, value: float | None) -> str:
    is_small = column.name == "epochs" and (value or 0) < 10
    return number(value, int(is_small)) if column.name == "epochs" else column.text(value, "–")


def _ours(row: Summary) -> str:
    words = [] if row["accuracy"] is None else [number(row["accuracy"])]
    if row["stopped"]:
        words.append(f"({row['stopped']})" if words else row["stopped"])
    if row["rounds"] != row["protocol_rounds"]:
        words.append(f"({row['rounds']:,} of {row['protocol_rounds']:,} rounds)")
    if row["clients"] != row["protocol_clients"]:
        words.append(f"({row['clients']} clients, the paper {row['protocol_clients']})")
    elif row["samples"] not in (None, row["protocol_samples"]):
        words.append(f"({row['samples']} samples per client, the paper {row['protocol_samples']})")
    return " ".join(words)


def _unmasked(row: Summary) -> str:
    """The accuracy, what it lost on the seeds that have both, and how many these are if not all."""
    change, some = row["unmasked_change"], row["unmasked_seeds"]
    if change is None:
        return number(row["unmasked"])
    words = f", {some} seed{'s' * (some > 1)}" if some < len(row["seeds"]) else ""
    return f"{number(row['unmasked'])} ({signed(change)}{words})"


def _judged(difference: float | None, words: str) -> str:
    if difference is None:
        return "–"
    return signed(difference) + (f" ({words})" if words else "")


def signed(difference: float) -> str:
    """A difference in points.

    >>> signed(1.234), signed(-0.001)
    ('+1.23', '0.00')
    """
    text = f"{difference:+.2f}"
    return "0.00" if float(text) == 0 else text


def number(value: float | None, digits: int = 2) -> str:
    """A number, or a dash where there is none.

    >>> number(1234.5, 0), number(None)
    ('1,234', '–')
    """
    return "–" if value is None else f"{value:,.{digits}f}"


def _protocol(row: Summary) -> str:
    """One run in words: how long, on what, with which options."""
    options = ", ".join(f"{name} {_plain(value)}" for name, value in row["options"].items())
    about = f"; {row['about']}" if row["about"] else ""
    machine = f"; on {', '.join(row['hardware'])}" if row["hardware"] else ""
    return f"`{row['row']}`: {row['rounds']:,} rounds, {options}{about}{machine}"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _once(rows: Sequence[Summary]) -> list[Summary]:
    return list({(row["row"], row["rounds"]): row for row in rows}.values())


def table_csv(rows: Sequence[Summary]) -> str:
    """All numbers, unrounded; lists joined by blanks."""
    flat = [
        {
            name: " ".join(map(str, value)) if isinstance(value, list) else value
            for name, value in row.items()
            if name != "options"
        }
        for row in rows
    ]
    return as_csv(flat)


def as_latex(target: str, study: Study, rows: Sequence[Summary]) -> str:
    """A table for a paper; needs booktabs."""
    head, lines = _cells(rows)
    form = "l" + "r" * (len(head) - 1)
    body = [_latex_line(head), r"\midrule"]
    family = ""
    for row, line in zip(rows, lines, strict=True):
        if row["family"] != family:
            family = row["family"]
            body += [rf"\multicolumn{{{len(head)}}}{{l}}{{\emph{{{_latex(family)}}}}} \\"]
        body.append(_latex_line(line))
    top = [f"% {target}: {study.title}; ± clients is over clients, ± seeds over seeds"]
    top += [rf"\begin{{tabular}}{{{form}}}", r"\toprule"]
    return "\n".join([*top, *body, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(_latex(cell) for cell in cells) + r" \\"


def _latex(text: str) -> str:
    r"""Text that LaTeX shows as it is.

    >>> _latex("D-PSGD, 2 %"), _latex("− local")
    ('D-PSGD, 2 \\%', '$-$ local')
    """
    for sign in "%_&#":
        text = text.replace(sign, "\\" + sign)
    return text.replace("±", r"$\pm$").replace("−", "$-$").replace("–", "--")


def as_json(target: str, study: Study, rows: Sequence[Summary], notes: Sequence[str]) -> str:
    content = {
        "format": FORMAT,
        "target": target,
        "dataset": study.dataset,
        "setting": study.setting,
        "rows": list(rows),
        "notes": list(notes),
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"
