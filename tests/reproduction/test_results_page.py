"""The page of results says what those of the reproduction do, which are checked by records."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

TITLES = {  # of the page of results, and of the tables that it is taken from
    "local": "Local SGD",
    "fedavg": "FedAvg",
    "dpsgd": "D-PSGD (s = 5 epochs)",
    "ditto": "Ditto",
    "meta-l2c": "meta-L2C",
    "scool-sbm": "SCooL-SBM",
    "scool-attention": "SCooL-attention",
    "scool-drawn": "SCooL, drawn peers (s = 5 epochs)",
    "scool-drawn, 1 epoch a round": "SCooL, drawn peers (s = 1 epoch)",
}
NOTHING = ("", "–")
TABLE1 = r"<!-- begin table1 {}-\w+ from .+? -->\n\n(.*?)\n\n<!-- end"


def _cells(line: str) -> list[str]:
    line = re.sub(r"<!--.*?-->", "", line)
    return [cell.strip().replace("*", "") for cell in line.strip("|").split("|")]


def _measured(dataset: str) -> list[dict[str, list[str]]]:
    """The rows of `table1` on its page of the reproduction: non-IID, then non-IID SBM."""
    page = (ROOT / "docs" / "reproduction" / f"{dataset}.md").read_text()
    return [
        {cells[0]: cells for cells in map(_cells, text.splitlines())}
        for text in re.findall(TABLE1.format(dataset), page, re.DOTALL)
    ]


def _shown(head: str) -> dict[str, list[str]]:
    """The rows of the table with this head on the page of results."""
    lines = (ROOT / "docs" / "results.md").read_text().splitlines()
    start = lines.index(head) + 2
    rows = lines[start : lines.index("", start)]
    assert len(rows) == 7
    return {cells[0]: cells[1:] for cells in map(_cells, rows)}


def _agree(shown: str, measured: str) -> bool:
    """Whether a number with one decimal is the other one, rounded."""
    return abs(float(shown) - float(measured.split()[0])) <= 0.0501


def test_the_page_of_results_has_the_numbers_of_cifar10() -> None:
    """A line a method, for both settings: accuracy ± clients, unmasked, paper."""
    shown = _shown("| method | non-IID | unmasked | paper | non-IID SBM | unmasked | paper |")
    for name, cells in shown.items():
        for table, found in zip(_measured("cifar10"), (cells[:3], cells[3:]), strict=True):
            _, ours, clients, _, _, unmasked, paper, *_ = table[TITLES[name]]
            assert found[0] == f"{ours} ± {clients}" and found[2] == paper.replace("–", "")
            assert _agree(found[1], unmasked)


def test_the_page_of_results_has_the_numbers_of_mini_imagenet() -> None:
    """A line a method, for both settings: accuracy (unmasked), paper."""
    shown = _shown("| method | non-IID | paper | non-IID SBM | paper |")
    for name, cells in shown.items():
        for table, found in zip(_measured("mini-imagenet"), (cells[:2], cells[2:]), strict=True):
            _, ours, _, _, _, unmasked, paper, *_ = table[TITLES[name]]
            accuracy, within = found[0].rstrip(")").split(" (")
            assert _agree(accuracy, ours) and _agree(within, unmasked), name
            assert (found[1] in NOTHING) == (paper in NOTHING)
            assert paper in NOTHING or _agree(found[1], paper)
