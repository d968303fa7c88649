"""Starting several ranks from the command line: one voice, one set of records."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scool.bench.scale_out import bench_scale_out
from scool.cli.main import dispatch
from scool.cli.ranks import goes_on, leading, time_out
from scool.errors import ConfigError
from scool.recording.folder import RunFolder

COMPARE = (
    "compare --methods local,dpsgd --set dpsgd.degree=3 dpsgd.slow_momentum=0.5 "
    "--dataset synthetic --clients 7 --model linear --device cpu --rounds 2 --json --no-figures"
).split()


def compare(folder: Path, *words: str, launcher: tuple[str, ...] = ()) -> tuple[list[dict], str]:
    program = [sys.executable, *launcher, "-m", "scool", *COMPARE, "--out", str(folder), *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        program, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_a_comparison_with_three_ranks_is_that_of_one(tmp_path: Path) -> None:
    own = tmp_path / "own.py"  # a method that the other ranks must have, too
    own.write_text("import scool\nMETHODS = {'half': scool.FedAvg(participation=0.5)}\n")
    words = ("--methods", "local,dpsgd,half", "--plugin", str(own))
    one, _ = compare(tmp_path / "one", "--quiet", *words)
    three, progress = compare(tmp_path / "three", "--ranks", "3", *words)
    assert len(three) == 3  # the first rank speaks, the others do not
    assert progress.count("local  round 2/2") == 1
    for mine, other in zip(three, one, strict=True):
        assert mine["accuracy_mean"] == pytest.approx(other["accuracy_mean"], abs=1e-6)
        for name in ("method", "bytes_sent", "messages", "epochs"):
            assert mine[name] == other[name]
    folder = RunFolder.open(tmp_path / "three" / "dpsgd")
    assert folder.header["hardware"]["ranks"] == 3 and len(folder.rows()) == 2
    timing = folder.rows("timing.jsonl")
    assert all(row["rank_traffic"]["mix"] > 0 for row in timing)
    assert "rank_bytes" not in folder.rows()[0]  # the result does not depend on the ranks
    alone = RunFolder.open(tmp_path / "three" / "local").rows("timing.jsonl")
    assert all("mix" not in row["rank_traffic"] for row in alone)


def test_torchrun_with_one_rank_runs_the_sharded_engine_to_the_same_numbers(tmp_path: Path) -> None:
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "1")
    plain, _ = compare(tmp_path / "plain", "--quiet")
    one, _ = compare(tmp_path / "one", "--quiet", launcher=launcher)
    for mine, other in zip(one, plain, strict=True):
        assert mine["accuracy_mean"] == pytest.approx(other["accuracy_mean"], abs=1e-6)
        assert mine["bytes_sent"] == other["bytes_sent"]
    assert list((tmp_path / "one" / "dpsgd").glob("shard-*-0-of-1.safetensors"))  # it was that one


def test_a_group_without_a_backend_for_the_cpu_is_used_where_it_can_be() -> None:
    program = """
import datetime, sys
import torch.distributed as dist
from scool.engine.ranks.group import Ranks
from scool.errors import RunError
dist.init_process_group("cuda:gloo", store=dist.HashStore(), rank=0, world_size=1)
assert not Ranks().is_group  # alone: everything is here
dist.get_world_size = lambda: 2
try:
    Ranks()
except RunError as error:
    assert "cpu:gloo,cuda:nccl" in str(error)
else:
    sys.exit("not refused")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_cannot_be_started_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="ranks = 0 is not possible"), leading(0, 7):
        pass
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="torchrun, which has started 2 ranks"), leading(3, 7):
        pass
    monkeypatch.setenv("SCOOL_RANK_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match="SCOOL_RANK_TIMEOUT = 'soon'"):
        time_out()


def test_more_ranks_than_clients_are_refused_before_any_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = ["--clients", "6", "--model", "linear", "--device", "cpu", "--rounds", "1", "--quiet"]
    run, pair = str(tmp_path / "run"), str(tmp_path / "pair")
    assert dispatch(["run", "local", *small, "--out", run]) == 0
    assert dispatch(["compare", "--methods", "local", "--no-figures", *small, "--out", pair]) == 0

    def started(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", started)
    new = ["--out", str(tmp_path / "new")]
    for words, clients in (
        (["run", "local", *small, *new], 6),
        (["run", "local", *new], 40),  # the number that the data have by default
        (["compare", "--dataset", "synthetic", *new], 20),
        (["run", "local", "--dataset", "cifar10", *new], 100),  # its files are not even there
        (["resume", run], 6),
        (["resume", pair], 6),
    ):
        refused = rf"^ranks = {clients + 1} is not possible: there are {clients} clients"
        with pytest.raises(ConfigError, match=refused):
            dispatch([*words, "--ranks", str(clients + 1)])
    with pytest.raises(ConfigError, match="ranks = 4 is not possible: there are 3 clients"):
        list(bench_scale_out(clients=(9, 3), ranks=(1, 4)))
    assert not (tmp_path / "new").exists()


def test_a_restart_needs_a_folder_and_goes_on_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert not goes_on(None)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(ConfigError, match="give --out"):
        goes_on(None)
    (tmp_path / "run.json").write_text("{}")
    assert not goes_on(tmp_path)  # the first start: an old run is not continued by accident
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert goes_on(tmp_path) and not goes_on(tmp_path / "other")


def test_scale_out_is_measured_in_real_processes() -> None:
    (row,) = bench_scale_out(clients=(40,), ranks=(2,))
    assert row["clients"] == 40 and row["ranks"] == 2 and row["round_seconds"] > 0
    assert 0 < row["rank_bytes"] < row["rank_bytes_scattered"]  # placed: no model travels
