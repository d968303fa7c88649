"""`benchmarks/results.py`: one table of all records, and pages whose numbers are in it."""

import json
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = runpy.run_path(str(ROOT / "benchmarks" / "results.py"))
ROWS = RESULTS["all_rows"]()


def test_the_pages_of_this_repository_agree_with_the_records() -> None:
    """If this fails: python benchmarks/results.py check"""
    assert RESULTS["check"](ROOT, ROWS) == []


def test_rows_are_means_over_seeds_and_a_wrong_number_is_found(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "natural").mkdir()
    head = "run,row,method,dataset,clients,rounds_done,device,status,seed,accuracy_mean"
    head += ",accuracy_std,unmasked_accuracy_mean,epochs,bytes,seconds"
    same = "a,a,ditto,cifar10/sbm,100,9,cpu,finished"
    lines = [head, f"{same},0,90.0,2.0,,5,1500,3.5", f"{same},1,91.0,4.0,,5,1500,4.5"]
    (tmp_path / "study" / "runs.csv").write_text("\n".join(lines) + "\n")
    contest = "setting,method,title,control,metric,seeds,mean,bytes\n"
    contest += "school,fedrep,FedRep,,rmse,0 1,10.25,\nschool,local,alone,,rmse,0 1,,\n"
    (tmp_path / "natural" / "natural.csv").write_text(contest)
    rows = RESULTS["all_rows"](tmp_path)
    assert [(row["row"], row["seeds"], row["mean"]) for row in rows] == [
        ("a (ditto)", 2, 90.5),
        ("FedRep", 2, 10.25),
    ]
    assert rows[0]["std_seeds"] == pytest.approx(0.5**0.5) and rows[0]["std_clients"] == 3
    assert "| a (ditto) | accuracy | 2 | 90.5 | 0.7071 | 3 |" in RESULTS["page"](rows)
    text = (
        "| ditto | 90.50 | 89.9 |\n| FedRep | 10.2 | 90.5 |\n\nNobody has 77.7, `--lr 0.5`\n\n"
        "- Ditto has 90.5 and 66.1 with `--lr 0.3` <!-- not in the table: 66.1, why -->\n"
    )
    wrong = RESULTS["wrong_numbers"]
    found = wrong(text, rows, {"fedrep": [10.24]})
    assert [words.split(" ")[0] for words in found] == ["89.9", "90.5"]
    found = wrong(text, rows, {"fedrep": [10.24]}, is_about_results=True)
    assert [words.split(" ")[0] for words in found] == ["89.9", "90.5", "77.7"]
    text = "My Ditto has 66.1 with 0.3\n\n<!-- begin a from b -->\nditto 1.23\n<!-- end a -->"
    found = wrong(text, rows, {}, {"My Ditto": "ditto"}, least=10)
    assert [words.split(" ")[0] for words in found] == ["66.1"]


def test_what_a_comparison_printed_is_in_the_table(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    line = {"method": "ditto", "dataset": "digits", "clients": 40, "rounds": 9, "seeds": [0, 1]}
    line |= {"accuracy_mean": 91.26, "accuracy_std": 2.5, "epochs": 5, "bytes_sent": 1500}
    lines = [line | {"seconds": 3.5}, {"method": "other", "accuracy_mean": 1.0}]
    path = tmp_path / "demo" / "results.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert "| ditto | accuracy | 2 | 91.26 |" in RESULTS["page"](RESULTS["all_rows"](tmp_path))


@pytest.mark.parametrize("page", ["README.md", "docs/demo.md", "docs/reproduction/beyond.md"])
def test_a_changed_number_of_a_page_is_found(page: str, tmp_path: Path) -> None:
    for name in (page, "docs/all-results.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    assert RESULTS["check"](tmp_path, ROWS) == []
    place, old = (
        tmp_path / page,
        {"README.md": "92.8 %", "docs/demo.md": "94.01 "}.get(page, "94.06"),
    )
    assert old in place.read_text()
    place.write_text(place.read_text().replace(old, f"17{old[2:]}"))
    assert any(f"{page}: 17" in words for words in RESULTS["check"](tmp_path, ROWS))


def test_a_changed_number_or_table_of_a_contest_is_found(tmp_path: Path) -> None:
    name = "natural"
    for folder in ("benchmarks/natural", "docs/natural"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    page = tmp_path / "docs" / "natural.md"
    text = (ROOT / "docs" / "natural.md").read_text()
    wrong, pages = RESULTS["wrong_on_contest_pages"], RESULTS["CONTESTS"][name]
    page.write_text(text)
    assert wrong(tmp_path, name, pages) == []
    page.write_text(text.replace("falls by 0.47", "falls by 0.97"))
    assert [words[:20] for words in wrong(tmp_path, name, pages)] == ["docs/natural.md: 0.9"]
    page.write_text(text.replace("| scool | 2.5 |", "| scool | 1.5 |"))
    assert ["`overall` is old" in words for words in wrong(tmp_path, name, pages)] == [True]


def test_tables_sort_by_number_and_unit_with_what_is_missing_last(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node to run the script of the site")
    script = (ROOT / "docs" / "assets" / "tables.js").read_text()
    heart = """
const cells = ["5 B", "1.4 TB", "\u2013", "70 GB"];
const rows = cells.map((text) => ({ cells: [{ textContent: text }] }));
const shown = (row) => row.cells[0].textContent;
const body = { rows, append: (...sorted) => console.log(sorted.map(shown).join()) };
const on = {};
const head = { style: {}, removeAttribute() {}, setAttribute() {} };
head.addEventListener = (what, act) => (on[what] = act);
head.parentNode = { cells: [head] };
const table = { tBodies: [body], tHead: { rows: [{ cells: [head] }] } };
globalThis.document = {
  addEventListener: (what, act) => act(),
  querySelectorAll: () => [table],
  querySelector: () => null,
};
"""
    path = tmp_path / "run.js"
    path.write_text(heart + script + "\non.click(); on.click();")
    done = subprocess.run([node, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        "1.4",
        "TB,70",
        "GB,5",
        "B,\u2013",
        "5",
        "B,70",
        "GB,1.4",
        "TB,\u2013",
    ]
