"""The records of this repository, and the pages that are made from them."""

import json
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from paper_runs import summaries
from scool.reproduction import measured as reproduced
from scool.reproduction.measured import (
    collect,
    find_records,
    summarise_row,
    without_shortened,
)
from scool.reproduction.plan import Study, choose_rows
from scool.reproduction.rows import ABLATIONS, TABLE1
from scool.reproduction.tables import (
    family_tables,
)
from study_records import BENCHMARKS, find_studies, restored

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("setting", ["noniid", "sbm"])
@pytest.mark.parametrize("method", ["scool-sbm", "scool-attention"])
def test_records_of_a_gpu_machine_are_read(tmp_path: Path, setting: Any, method: str) -> None:
    """They were written by a version that had fewer options."""
    (folder,) = restored(tmp_path, "2026-11-15-cifar10-core")
    study = Study(setting=setting)
    found, _ = summaries(folder, TABLE1, study)
    assert list(found) == ["scool-sbm", "scool-attention"]
    header = json.loads((folder / f"{method}-{setting}" / "run.json").read_text())
    assert found[method]["accuracy"] == pytest.approx(header["result"]["accuracy_mean"])
    assert found[method]["seeds"] == [0] and found[method]["verdict"] == "one seed"


def test_ten_percent_in_the_sbm_setting_belongs_to_the_budget(tmp_path: Path) -> None:
    (folder,) = restored(tmp_path, "2026-11-15-cifar10-core")
    found, _ = summaries(folder, choose_rows("budget"), Study(setting="sbm"))
    assert list(found) == ["scool-sbm-10-percent", "scool-attention-10-percent"]
    assert found["scool-sbm-10-percent"]["accuracy"] == pytest.approx(88.4, abs=0.01)


PLACE = re.compile(
    r"<!-- begin (\S+) (\S+)-(noniid|sbm) from (.+?)(?: --methods (\S+))? -->\n\n(.*?)\n\n"
    r"<!-- end \1 \2-\3 -->",
    re.DOTALL,
)
WITH_ALL_FAMILIES = ["ablations", "cifar10", "noniid"]
PAGES = [*(ROOT / "docs").glob("reproduction/*.md"), *(ROOT / "docs").glob("ablations/*.md")]
PLACES = [found for page in sorted(PAGES) for found in PLACE.findall(page.read_text())]


def test_the_pages_have_tables() -> None:
    pages = [page.read_text() for page in PAGES]
    assert len(PLACES) == sum(page.count("<!-- begin ") for page in pages) == 15


def test_every_family_of_ablations_is_on_a_page() -> None:
    words = ",".join(methods for *where, _, methods, _ in PLACES if where == WITH_ALL_FAMILIES)
    assert sorted(words.split(",")) == sorted({row.family for row in ABLATIONS})


_once = cache(find_records)


@pytest.fixture(scope="session")
def benchmarks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The raw runs that the pages are made from, where the commands on the pages expect them."""
    root = tmp_path_factory.mktemp("records")
    folders = {Path(folder) for _, _, _, places, *_ in PLACES for folder in places.split()}
    for study in find_studies(BENCHMARKS):
        place = study.relative_to(ROOT)
        if folders & {place, *place.parents}:
            restored(root / "benchmarks", str(study.relative_to(BENCHMARKS)))
    yield root
    shutil.rmtree(root)  # 75 MB


@pytest.fixture
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of this repository are some hundred runs, and do not change meanwhile."""

    def again(folders: list[Path]) -> Any:
        records, notes = _once(tuple(folders))
        return records, list(notes)

    monkeypatch.setattr(reproduced, "find_records", again)


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize(
    ("target", "dataset", "setting", "folders", "methods", "text"), PLACES, ids=lambda v: v[:20]
)
def test_the_numbers_of_the_pages_are_those_of_the_records(
    benchmarks: Path, target: str, dataset: str, setting: Any, folders: str, methods: str, text: str
) -> None:
    """If this fails: the commands are at the end of docs/reproduction/run.md"""
    study = Study(dataset, setting)
    places = [benchmarks / folder for folder in folders.split()]
    measured, _ = collect(study, choose_rows(target, methods or "all"), places)
    shown, _ = without_shortened(measured, study)
    assert text == family_tables([summarise_row(m, study, measured) for m in shown])
