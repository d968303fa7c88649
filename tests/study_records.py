"""The records of this repository, by the functions of `benchmarks/records.py`."""

import importlib.util
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # its `records` has the name of a module of the tests

_spec = importlib.util.spec_from_file_location("benchmark_records", BENCHMARKS / "records.py")
assert _spec is not None and _spec.loader is not None
records = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(records)
find_studies = records.find_studies


def restored(into: Path, *studies: str, below: str = "") -> list[Path]:
    """Raw runs of some studies, in folders of these names."""
    for study in studies:
        records.restore(BENCHMARKS / study, into / study, below)
    return [into / study for study in studies]


def headers(study: Path) -> dict[str, str]:
    """Each `run.json` of a study by its folder; one beside the notes is in no archive."""
    files = records.read_archive(study) if (study / records.ARCHIVE).exists() else {}
    packed = {f: files[f"{f}/run.json"].decode() for f in records.run_folders(files)}
    plain = study / "run.json"
    return packed | ({".": plain.read_text()} if plain.exists() else {})
