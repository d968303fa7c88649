"""`benchmarks/records.py`: raw runs go into an archive and come back, and nothing gets lost."""

import hashlib
import io
import json
import lzma
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from study_records import BENCHMARKS, find_studies, records

RecordsError = records.RecordsError


def make_run(folder: Path, accuracy: float = 90.0, **header: Any) -> Path:
    """A record of two rounds, as far as the table reads it."""
    rows = [
        {"round": 0, "bytes": 10, "messages": 1, "epochs": 5.0},
        {"round": 1, "bytes": 10, "messages": 2, "epochs": 5.0, "accuracy_mean": accuracy},
    ]
    result = {"accuracy_mean": accuracy, "bytes_sent": 20, "messages": 3, "seconds": 1.5}
    about = {"status": "finished", "seed": 0, "rounds": 2, "rounds_done": 2, "result": result}
    about |= {"versions": {"scool": "0.1.0", "commit": "abc"}, "command": ["scool", "run", "a b"]}
    (folder / "graphs").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(about | header))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "graphs/000001.safetensors").write_bytes(bytes(range(256)))
    return folder


@pytest.fixture
def study(tmp_path: Path) -> Path:
    place = tmp_path / "benchmarks/2030-01-01-trial"
    make_run(place / "local/seed-0")
    make_run(place / "scool-sbm")
    (place / "local/compare.json").write_text("{}")
    (place / "README.md").write_text("a note")
    return place


def contents(place: Path) -> dict[str, bytes]:
    return {
        path.relative_to(place).as_posix(): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file() and not path.name.startswith("runs.")
    }


def forge(study: Path, *members: tarfile.TarInfo | str) -> None:
    """An archive with members of these names, and a checksum that fits."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            info.size = 1 if info.isreg() else 0
            tar.addfile(info, io.BytesIO(b"x") if info.isreg() else None)
    content = lzma.compress(buffer.getvalue())
    study.mkdir(parents=True, exist_ok=True)
    (study / records.ARCHIVE).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    (study / records.CHECKSUM).write_text(f"{digest}  {records.ARCHIVE}\n")


def test_runs_come_back_to_the_byte(study: Path) -> None:
    before = contents(study)
    assert records.pack(study).startswith("2 runs in ")
    names = {"README.md", records.ARCHIVE, records.CHECKSUM, records.TABLE}
    assert {path.name for path in study.iterdir()} == names
    assert records.check(study) == []
    packed = (study / records.ARCHIVE).read_bytes()
    assert records.restore(study) == "2 runs, 7 files"
    assert contents(study) == before
    assert records.restore(study) == "2 runs, 7 files"  # what is there already may stay
    records.pack(study)
    assert (study / records.ARCHIVE).read_bytes() == packed and not (study / "local").exists()


def test_part_of_a_study_is_restored_elsewhere(study: Path, tmp_path: Path) -> None:
    records.pack(study)
    records.restore(study, tmp_path / "here", "scool-sbm")
    assert {path.name for path in (tmp_path / "here").iterdir()} == {"scool-sbm"}
    with pytest.raises(RecordsError, match="has no folder 'scool'"):
        records.restore(study, tmp_path / "here", "scool")


def test_a_row_per_run(study: Path) -> None:
    make_run(study / "local/seed-1", 1 / 3, status="diverged", result=None)
    records.pack(study)
    table = (study / records.TABLE).read_text().splitlines()
    names, *rows = (line.split(",") for line in table)
    found = [dict(zip(names, row, strict=True)) for row in rows]
    assert [(r["run"], r["row"]) for r in found] == [
        ("local/seed-0", "local"),
        ("local/seed-1", "local"),
        ("scool-sbm", "scool-sbm"),
    ]
    assert [r["accuracy_mean"] for r in found] == ["90", "0.333333333", "90"]
    assert [r["status"] for r in found] == ["finished", "diverged", "finished"]
    wanted = {"bytes": "20", "messages": "3", "epochs": "10", "seconds": "1.5", "commit": "abc"}
    assert found[0].items() >= wanted.items() and found[0]["command"] == "scool run 'a b'"
    assert found[0]["unmasked_accuracy_mean"] == found[1]["seconds"] == ""


def test_equal_content_gives_equal_archives(study: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for name, content in reversed(contents(study).items()):
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).write_bytes(content)
        (other / name).chmod(0o600)
        os.utime(other / name, (1, 1))
    records.pack(study)
    records.pack(other)
    for name in (records.ARCHIVE, records.CHECKSUM, records.TABLE):
        assert (study / name).read_bytes() == (other / name).read_bytes()


# ---------------------------------------------------------------------- more runs


def test_new_runs_join_archived_ones(study: Path) -> None:
    before = contents(study)
    records.pack(study)
    make_run(study / "local/seed-1", 80.0)
    make_run(study / "fedavg", 70.0)
    before |= contents(study)
    (said,) = records.check(study)
    assert said.startswith("fedavg/") and said.endswith(
        " is not archived (6 files): pack the study"
    )
    assert records.pack(study).startswith("4 runs in ")
    records.restore(study)
    assert contents(study) == before


def test_a_run_that_differs_is_neither_packed_nor_overwritten(study: Path) -> None:
    records.pack(study)
    packed = (study / records.ARCHIVE).read_bytes()
    make_run(study / "scool-sbm", 95.0)
    (study / "scool-sbm/graphs/000001.safetensors").unlink()
    with pytest.raises(RecordsError, match=r"^scool-sbm: what lies in place is not what is arch"):
        records.pack(study)
    with pytest.raises(RecordsError, match=r"scool-sbm/.* differs from the archived file \(2 fi"):
        records.restore(study)
    assert not (study / "local").exists() and (study / records.ARCHIVE).read_bytes() == packed
    (said,) = records.check(study)
    assert said.endswith("differs from the archive (2 files)")
    mine = contents(study / "scool-sbm")
    records.pack(study, replace=True)
    records.restore(study)
    assert contents(study / "scool-sbm") == mine  # nothing of the run before is mixed in


def test_a_file_more_makes_another_run(study: Path) -> None:
    records.pack(study)
    records.restore(study)
    (study / "scool-sbm/report.html").write_text("a page")
    with pytest.raises(RecordsError, match="scool-sbm: what lies in place is not what is archived"):
        records.pack(study)


@pytest.mark.parametrize("status", ["running", "failed", None])
def test_a_run_that_is_not_over_stays(study: Path, status: str | None) -> None:
    make_run(study / "going-on", status=status)
    before = contents(study)
    with pytest.raises(RecordsError, match=f"going-on is {status}: resume it, or remove it"):
        records.pack(study)
    assert contents(study) == before and not (study / records.ARCHIVE).exists()


def test_what_does_not_belong_in_a_record(study: Path) -> None:
    link = study / "local/seed-0/elsewhere"
    link.symlink_to(study.parent, target_is_directory=True)
    with pytest.raises(RecordsError, match="elsewhere is not a plain file"):
        records.pack(study)
    link.unlink()
    (study / "local/seed-0.lock").touch()  # a killed process left it
    (study / "local/seed-0/checkpoint-000002.safetensors").write_bytes(bytes(9 * 2**20))
    with pytest.raises(RecordsError, match=r"checkpoint-000002.safetensors has 9 MB: models are"):
        records.pack(study)
    (study / "local/seed-0/checkpoint-000002.safetensors").unlink()
    records.pack(study)
    assert [path.name for path in (study / "local").iterdir()] == ["seed-0.lock"]


def test_nothing_is_deleted_before_the_archive_is_right(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, write = contents(study), records.write_archive

    def lose(study: Path, files: dict[str, bytes]) -> None:
        write(study, {name: files[name] for name in sorted(files)[1:]})

    monkeypatch.setattr(records, "write_archive", lose)
    with pytest.raises(RecordsError, match="nothing is deleted"):
        records.pack(study)
    assert contents(study) == before


# ---------------------------------------------------------------------- damage


def test_a_flipped_byte_is_noticed(study: Path) -> None:
    records.pack(study)
    make_run(study / "fedavg")
    content = bytearray((study / records.ARCHIVE).read_bytes())
    content[len(content) // 2] ^= 1
    (study / records.ARCHIVE).write_bytes(content)
    assert records.check(study)[0].startswith("runs.tar.xz does not match runs.tar.xz.sha256")
    for command in (records.restore, records.pack):
        with pytest.raises(RecordsError, match=r"does not match runs\.tar\.xz\.sha256"):
            command(study)
    assert (study / "fedavg/run.json").exists() and not (study / "local").exists()


def _link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    "members",
    [
        ["../outside/x"],
        ["run/../../../x"],
        ["run/../run/x"],
        ["run//x"],
        ["/tmp/x"],
        ["README.md"],
        ["run/x", "run/x"],
        [_link("run/x", "../../../outside")],
        [_link("run/x", "y")],
        [_link("run/x", "run/y", tarfile.LNKTYPE)],
        [_link("run/pipe", "", tarfile.FIFOTYPE)],
        [_link("run", "", tarfile.DIRTYPE)],
    ],
    ids=range(12),
)
def test_members_that_lead_elsewhere_are_refused(tmp_path: Path, members: list[Any]) -> None:
    study = tmp_path / "benchmarks/study"
    forge(study, *members)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RecordsError, match=r"runs\.tar\.xz is refused"):
        records.restore(study)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_in_place_leads_nowhere(tmp_path: Path) -> None:
    study, outside = tmp_path / "study", tmp_path / "outside"
    forge(study, "run/x")
    outside.mkdir()
    (study / "run").symlink_to(outside, target_is_directory=True)
    with pytest.raises(RecordsError, match="outside the destination"):
        records.restore(study)
    assert not list(outside.iterdir())


def test_a_table_that_says_something_else_is_noticed(study: Path) -> None:
    records.pack(study)
    table = (study / records.TABLE).read_text()
    (study / records.TABLE).write_text(table.replace(",90,", ",91,", 1))
    assert records.check(study) == [
        "runs.csv does not agree with the archive: pack the study again"
    ]
    records.pack(study)
    assert (study / records.TABLE).read_text() == table and records.check(study) == []
    (study / records.ARCHIVE).unlink()
    assert records.check(study)[0].startswith("it has no archive")


def test_a_header_and_rounds_that_disagree_are_noticed(study: Path) -> None:
    header = json.loads((study / "scool-sbm/run.json").read_text())
    header["result"] |= {"accuracy_mean": 99.0}
    (study / "scool-sbm/run.json").write_text(json.dumps(header | {"rounds_done": 3}))
    records.pack(study)
    assert records.check(study) == [
        "scool-sbm: rounds_done is 3 in run.json and 2 in metrics.jsonl",
        "scool-sbm: accuracy_mean is 99.0 in run.json and 90.0 in metrics.jsonl",
    ]


# ---------------------------------------------------------------------- command line


def test_studies_are_named_as_one_likes(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = study.parent
    for setting in ("cifar10-sbm", "cifar10-noniid"):
        make_run(root / "reproduction" / setting / "local/seed-0")
    monkeypatch.setattr(records, "ROOT", root)
    monkeypatch.chdir(root.parent)
    assert records.main(["check"]) == 1 and "has no archive" in capsys.readouterr().err
    assert records.main(["restore"]) == 0 and "not packed yet" in capsys.readouterr().out
    assert records.main(["pack", "reproduction", f"benchmarks/{study.name}"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert records.main(["check"]) == 0
    assert records.main(["restore", "reproduction/cifar10-sbm/local"]) == 0
    assert [path.parts[-4] for path in root.rglob("run.json")] == ["cifar10-sbm"]
    assert records.main(["pack", "benchmarks/reproduction/cifar10-sbm/local"]) == 1
    assert "a part of one" in capsys.readouterr().err
    assert records.main(["restore"]) == 0 and len(list(root.rglob("run.json"))) == 4
    with pytest.raises(SystemExit, match="2"):
        records.main(["pack", "nowhere"])


# ---------------------------------------------------------------------- records of this repository


@pytest.mark.parametrize("study", find_studies(BENCHMARKS), ids=lambda path: path.name)
def test_the_archives_of_this_repository_are_whole(study: Path) -> None:
    """If this fails: python benchmarks/records.py check"""
    assert records.check(study) == []


def test_git_ignores_raw_runs_and_nothing_else() -> None:
    studies = ["2026-11-15-mask", "reproduction/cifar10-sbm"]
    kept = ["README.md", "run.py", "results.jsonl", "runs.csv", "runs.tar.xz", "runs.tar.xz.sha256"]
    raw = [f"benchmarks/{study}/fedavg/seed-0/{n}" for study in studies for n in ("run.json", "x")]
    notes = [f"benchmarks/{study}/{name}" for study in studies for name in kept]
    notes += ["benchmarks/records.py", "benchmarks/reproduction/lists/2030-01-01.txt"]
    command = ["git", "-C", str(BENCHMARKS.parent), "check-ignore", "--no-index", *raw, *notes]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no git")
    if found.returncode == 128:
        pytest.skip("this is not a clone")
    assert found.stdout.splitlines() == raw
