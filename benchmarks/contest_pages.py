"""Do the pages about a contest (`scool reproduce natural`) say what its JSON file says?

Tables between markers must be those that the command makes of the file. Every other number with a
decimal point must be one of a method that is named beside it, rounded as it stands on the page.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from page_numbers import wrong_numbers

from scool.contest.plan import read_study
from scool.contest.tables import parts_of


def wrong_on_contest_pages(root: Path, name: str, pages: Sequence[str]) -> list[str]:
    """What on the pages does not follow from `benchmarks/NAME/NAME.json`, where there is one."""
    data = root / "benchmarks" / name / f"{name}.json"
    if not data.is_file():
        return []
    content = json.loads(data.read_text())
    tables = parts_of(read_study(name), content["rows"], content["overall"], content["kinds"])
    rows = [
        {**row, "names": {row["method"], row["title"]}}
        for table in ("rows", "overall", "kinds")
        for row in ({"title": "", **row} for row in content[table])
    ]
    words: list[str] = []
    for path in sorted({path for page in pages for path in root.glob(page)}):
        text, place = path.read_text(), path.relative_to(root).as_posix()
        for part, table in tables.items():
            marker = re.escape(f"{name} {part}")
            found = re.search(rf"<!-- begin {marker} -->(.*)<!-- end {marker} -->", text, re.DOTALL)
            if found and found[1].strip() != table.strip():
                words.append(
                    f"{place}: the table `{part}` is old: scool reproduce {name} --only-tables "
                    f"--page {place}"
                )
        words += [f"{place}: {one}" for one in wrong_numbers(text, rows, {}, None, True)]
    return words
