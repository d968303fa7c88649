"""The paper's table as a plan: its rows, and running it once, in pieces, or again."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from records import change_header
from scool.algorithms import METHODS
from scool.contracts import Recorder
from scool.data import catalogue
from scool.errors import ConfigError, RunError
from scool.recording.folder import RunFolder
from scool.recording.writer import RunWriter
from scool.reproduction import running
from scool.reproduction.light_records import thin, tidy
from scool.reproduction.matching import conflicts
from scool.reproduction.paper import DATASETS, SETTINGS, Reported, Setting, reported
from scool.reproduction.plan import TARGETS, Job, Study, choose_rows, jobs_of
from scool.reproduction.rows import ABLATIONS, BUDGET, TABLE1, Row
from scool.reproduction.running import TimeLeft, run_jobs, state_of
from scool.run.identity import modern
from scool.run.loop import Interrupted
from scool.run.progress import LONG
from scool.sweep.runner import claim_run
from tiny_images import write_cifar10

PAPER_ROWS = [row.name for row in TABLE1[:14]]
SUMS: dict[tuple[str, Setting], tuple[float, float]] = {
    ("cifar10", "noniid"): (1083.58, 91.59),
    ("cifar100", "noniid"): (650.38, 76.83),
    ("mini-imagenet", "noniid"): (509.39, 74.73),
    ("cifar10", "sbm"): (1101.74, 67.48),
    ("cifar100", "sbm"): (723.49, 65.54),
    ("mini-imagenet", "sbm"): (532.48, 53.38),
}


class Silent:
    """A recorder that stops a run after some rounds, as a person or a kill would."""

    def __init__(self, stop: BaseException | None = None, after: int = 0) -> None:
        self.stop, self.after = stop, after

    def start(self, header: Mapping[str, Any], first_round: int) -> None: ...

    def round(self, row: Mapping[str, Any], info: Any) -> None:
        if self.stop is not None and row["round"] + 1 == self.after:
            raise self.stop

    def end(self, result: Any) -> None: ...


def watching(recorder: Recorder) -> Any:
    @contextmanager
    def watch(job: Job) -> Iterator[Recorder]:
        yield recorder

    return watch


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cifar10(tmp_path_factory.mktemp("tiny"))


def tiny(data: Path, **changes: Any) -> Study:
    options = {"rounds": 2, "clients": 5, "device": "cpu", "verify_checksums": False}
    return Study(data_dir=str(data), **(options | changes))


# ---------------------------------------------------------------------- what is run


def test_every_row_is_possible_on_every_dataset() -> None:
    for dataset in DATASETS:
        for setting in SETTINGS:
            study = Study(dataset, setting)
            for row in (*TABLE1, *BUDGET, *ABLATIONS):
                config = study.config(row, 3)
                assert config.method in METHODS and config.settings.seed == 3
                assert config.settings.rounds == row.rounds
                assert config.settings.data.partition == setting


@pytest.mark.parametrize("rows", [TABLE1, BUDGET, ABLATIONS])
def test_names_are_unique(rows: tuple[Row, ...]) -> None:
    names = [(row.family, row.name) for row in rows]
    assert len(set(names)) == len(names)
    assert {row.against for row in rows} - {""} <= {row.name for row in (*TABLE1, *ABLATIONS)}


def test_the_rows_of_the_paper_and_their_protocol() -> None:
    study = Study()
    configs = {row.name: study.config(row, 0) for row in TABLE1}
    assert all(reported(name, d, s) for name in PAPER_ROWS for d in DATASETS for s in SETTINGS)
    assert [r.name for r in TABLE1 if not reported(r.name, "cifar100", "sbm")] == [
        "scool-drawn",
        "scool-drawn-1-epoch",
        "scool-mmsbm",
        "scool-sbm-released",
        "scool-attention-released",
        "truth",
    ]
    for name, config in configs.items():
        sgd, settings = config.algorithm.sgd, config.settings
        assert (sgd.lr, sgd.batch_size, settings.data.augment) == (0.01, 10, True)
        if name.endswith("-1-step"):
            assert sgd.steps == 1 and settings.rounds * sgd.batch_size == 500 * 500
        elif name != "fedavg":
            share = getattr(config.algorithm, "participation", 1.0)
            assert sgd.steps == 0 and share * sgd.epochs * settings.rounds == 500
    fedavg: Any = configs["fedavg"]
    assert fedavg.algorithm.participation == 0.1 and 5 * fedavg.settings.rounds > 1000
    ditto: Any = configs["ditto"]
    assert ditto.algorithm.participation == 0.1  # its common model is trained as FedAvg's
    assert configs["scool-sbm-released"].settings.model.relu_logits
    often: Any = configs["scool-drawn-1-epoch"]
    assert (often.algorithm.sgd.epochs, often.algorithm.fraction) == (1, 0.02)
    parts = [row for row in ABLATIONS if row.family == "drawn-1-epoch"]
    for row in parts:  # each starts from that row
        config: Any = study.config(row, 0)
        changed = {name.rpartition(".")[2] for name in conflicts(often.to_dict(), config.to_dict())}
        assert config.algorithm.sgd.epochs == 1 and changed <= set(row.options), row.name
    assert len(parts) == 10


def test_the_figures_of_the_paper() -> None:
    """Some cells and all column sums of the printed table."""
    assert reported("local", "cifar10", "noniid") == Reported(87.5, 7.02)
    assert reported("scool-attention", "mini-imagenet", "sbm") == Reported(51.69, 2.80)
    assert reported("dada", "cifar100", "noniid") == Reported(57.61, 5.45)
    assert reported("cga-5-epochs", "cifar100", "noniid") == Reported(None, None)
    assert reported("scool-attention-released", "cifar10", "sbm") == Reported(94.33, None, seeds=1)
    assert reported("truth", "cifar10", "sbm") is None
    for column, sums in SUMS.items():
        found = [reported(name, *column) for name in PAPER_ROWS]
        means = [r.mean for r in found if r and r.mean is not None]
        spreads = [r.std_clients for r in found if r and r.std_clients is not None]
        assert (round(sum(means), 2), round(sum(spreads), 2)) == sums


def test_a_hundred_classes_have_ten_groups_of_ten() -> None:
    sbm = next(row for row in TABLE1 if row.name == "scool-sbm")
    algorithm: Any = Study("mini_imagenet", "sbm").config(sbm, 0).algorithm
    assert algorithm.prior.num_blocks == 10 and algorithm.fraction == 0.1
    algorithm = Study("cifar10", "sbm").config(sbm, 0).algorithm
    assert algorithm.prior.num_blocks == 5 and algorithm.fraction == 0.2


def test_ablations_change_what_they_say_and_nothing_else() -> None:
    study = Study()
    plain = {row.name: _config(study, row) for row in (*ABLATIONS, *TABLE1)}
    for row in ABLATIONS:
        if row.method not in (plain[row.against]["method"],):
            continue  # starts from another recipe, e.g. released
        differ = {n.split(".")[-1] for n in conflicts(plain[row.against], _config(study, row))}
        assert differ <= set(row.options), row.name
    families = {row.family for row in ABLATIONS}
    asked = {"prior", "released", "cross-losses", "null-model", "relu-logits", "attention"}
    assert asked | {"augmentation", "local-epochs", "temperature"} <= families
    off = {row.against for row in ABLATIONS if row.family == "augmentation"}
    assert off == {row.name for row in TABLE1} | {"ditto-all-clients"}
    shown = [row.name for row in choose_rows("ablations", "ditto-all-clients-no-augment")]
    assert shown == ["ditto-all-clients", "ditto-all-clients-no-augment"]


def _config(study: Study, row: Row) -> dict[str, Any]:
    return study.config(row, 0).to_dict()


def test_a_run_that_several_rows_share_has_one_folder() -> None:
    for setting, blocks in (("noniid", "blocks-10"), ("sbm", "blocks-5")):
        rows = choose_rows("ablations", f"{blocks},cross-50,blocks-2")
        folders = [job.folder.parent.name for job in jobs_of(Study(setting=setting), rows, Path())]
        assert folders == ["scool-sbm", "blocks-2"]
    runs = {job.folder for job in jobs_of(Study(), TARGETS["table1"], Path("o"))}
    for target in ("convergence", "graphs", "graph-error"):
        assert {job.folder for job in jobs_of(Study(), TARGETS[target], Path("o"))} <= runs


@pytest.mark.parametrize("method", ["dpsgd", "spdb", "cga", "scool-dirac"])
def test_fixed_graphs_do_not_follow_the_groups(method: str) -> None:
    """In the sbm setting the clients are listed group by group."""
    for setting, shuffled in (("noniid", False), ("sbm", True)):
        algorithm: Any = Study(setting=setting).config(Row("r", "R", method), 0).algorithm
        assert getattr(algorithm, "prior", algorithm).shuffle is shuffled


def test_rows_are_chosen_by_name_method_or_family() -> None:
    assert [r.name for r in choose_rows("table1", "dpsgd, local")] == [
        "local",
        "dpsgd-1-step",
        "dpsgd-5-epochs",
    ]
    assert [r.name for r in choose_rows("table1", "scool-drawn")] == ["scool-drawn"]  # not both
    assert choose_rows("table1", "local,all") == choose_rows("table1") == TABLE1
    with pytest.raises(ConfigError, match=r"methods = ' ' is not possible: .* or all"):
        choose_rows("table1", " ")
    topology = choose_rows("ablations", "topology")
    assert topology[0].name == "dpsgd-5-epochs" and len(topology) == 7
    with pytest.raises(ConfigError, match="unknown row of table1 'scool-sbn': did you mean"):
        choose_rows("table1", "scool-sbn")
    with pytest.raises(ConfigError, match=r"'attention-modes': did you .* and \d+ more$") as error:
        choose_rows("ablations", "attention-modes")
    assert len(str(error.value)) < 400  # the nearest of many, not all
    with pytest.raises(ConfigError, match="unknown dataset 'cifar': did you mean 'cifar10'"):
        Study("cifar")


def test_what_another_version_wrote_is_the_run_that_had_the_defaults_of_newer_options() -> None:
    now = _config(Study(), TABLE1[0])
    old = json.loads(json.dumps(now))
    del old["algorithm"]["sgd"]["nesterov"], old["settings"]["slow_momentum"]
    old["settings"]["personal_pull"] = 0.0  # gone, and had done nothing
    old["settings"]["average"] = old["settings"].pop("model_average")  # its name at first
    old["settings"] |= {"seed": 7, "rounds": 3, "device": "cuda"}
    assert conflicts(old, now) == {}
    newer = json.loads(json.dumps(now))
    newer["settings"]["slow_momentum"] = 0.5
    assert list(conflicts(old, newer)) == ["settings.slow_momentum"]
    old["settings"]["personal_pull"] = 1.0
    assert list(conflicts(old, now)) == ["settings.personal_pull"]
    del old["settings"]["personal_pull"]
    old["algorithm"]["forgotten"] = 1  # nobody knows any more what it did
    assert list(conflicts(old, now)) == ["algorithm.forgotten"]
    old["algorithm"]["sgd"]["lr"] = 0.02
    assert list(conflicts(old, now)) == ["algorithm.sgd.lr", "algorithm.forgotten"]
    assert list(conflicts(old | {"method": "fedavg"}, now)) == ["method"]


def test_an_option_that_a_record_lacks_was_not_what_the_method_sets_now() -> None:
    """An option that is newer than a record did nothing then, whatever `scool-drawn` asks for."""
    now = _config(Study(), next(row for row in TABLE1 if row.name == "scool-drawn"))
    old = json.loads(json.dumps(now))
    del old["algorithm"]["peers"]
    assert conflicts(old, now) == {"algorithm.peers": ("best", "drawn")}


def test_renamed_options_are_those_of_scool() -> None:
    """Another method may have an option of a name that SCooL's had once."""
    assert modern({"algorithm": {"precision": 1}}) == {"algorithm": {"precision": 1}}
    scool = modern({"algorithm": {"precision": 1, "prior": {"optimizer": "adam"}}})
    prior = {"prior_optimizer": "adam"}
    assert scool == {"algorithm": {"model_precision": 1, "prior": prior}}


def test_the_number_of_the_paper_is_the_default() -> None:
    assert Study(clients=100) == Study()
    assert Study(clients=99) != Study()


def test_runs_are_evaluated_twenty_times_and_those_without_augmentation_come_last() -> None:
    assert Study().config(TABLE1[0], 0).settings.eval_every == 5
    jobs = jobs_of(Study(seeds=2), choose_rows("ablations", "augmentation"), Path())
    plain = [job.config.settings.data.augment for job in jobs if job.config.settings.seed == 0]
    assert plain == sorted(plain, reverse=True) and not all(plain)


# ---------------------------------------------------------------------- running it


def test_finished_runs_are_not_repeated_and_files_are_read_once(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []
    entry = catalogue.DATASETS["cifar10"]

    def read(root: Path, *, verify: bool = True) -> Any:
        reads.append(root)
        assert entry.read is not None
        return entry.read(root, verify=verify)

    monkeypatch.setitem(catalogue.DATASETS, "cifar10", replace(entry, read=read))
    rows = choose_rows("table1", "dpsgd-1-step,truth")
    said: list[tuple[str, float | None]] = []
    jobs = jobs_of(tiny(data, seeds=2), rows, tmp_path)
    assert run_jobs(jobs, watching(Silent()), lambda *words: said.append(words)) == 4
    assert reads == [data]
    assert said[0] == ("run 1 of 4 starts: dpsgd-1-step, seed 0", None)
    assert said[3][0] == "run 4 of 4 starts: truth, seed 1" and said[3][1] is not None
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert run_jobs(jobs, watching(Silent())) == 0
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    more = jobs_of(tiny(data, seeds=1, seed=2), rows[:1], tmp_path)
    assert run_jobs([*jobs, *more], watching(Silent())) == 1  # appended to the folder
    digests = {
        json.loads((job.folder / "run.json").read_text())["identity"]["digest"]
        for job in [*jobs, *more]
    }
    assert len(digests) == 3  # every seed has its own clients, though files are read once


def test_processes_share_a_plan(data: Path, tmp_path: Path) -> None:
    """While another process is at a run it is left alone; when that has died, it is taken."""
    jobs = jobs_of(tiny(data, rounds=2), choose_rows("table1", "local,truth"), tmp_path)
    hold = f"""if True:
        import sys
        from pathlib import Path
        from scool.sweep.runner import claim_run
        with claim_run(Path({str(jobs[0].folder)!r})) as is_ours:
            print(is_ours, flush=True)
            sys.stdin.read()
    """
    other = subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    said: list[str] = []
    try:
        assert other.stdout is not None and other.stdout.readline() == "True\n"
        assert run_jobs(jobs, watching(Silent()), lambda words, left: said.append(words)) == 1
    finally:
        other.kill()
        other.communicate(timeout=30)
    assert said[0] == "run 1 of 2 is left to the process that is at it: local, seed 0"
    assert [job.folder.exists() for job in jobs] == [False, True]
    assert run_jobs(jobs, watching(Silent())) == 1
    assert not list(tmp_path.rglob("*.lock"))


def test_a_run_that_another_process_finished_meanwhile_is_not_repeated(
    data: Path, tmp_path: Path
) -> None:
    jobs = jobs_of(tiny(data, rounds=2), choose_rows("table1", "local,truth"), tmp_path)

    class Faster(Silent):
        """While the first run lasts, somebody makes the second."""

        def start(self, header: Mapping[str, Any], first_round: int) -> None:
            run_jobs(jobs[1:], watching(Silent()))

    said: list[float | None] = []
    assert run_jobs(jobs, watching(Faster()), lambda words, left: said.append(left)) == 1
    assert len(said) == 1 and not list(tmp_path.rglob("*.lock"))


def test_a_folder_that_cannot_be_locked_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.lock").mkdir()
    with pytest.raises(RunError, match=r"cannot lock .*run\.lock: .*choose another --out"):
        with claim_run(tmp_path / "run"):
            pass


def test_the_clients_of_a_seed_are_those_of_a_plain_run(data: Path) -> None:
    shelf = running.Shelf()
    for seed in (0, 1, 0):
        config = tiny(data).config(TABLE1[0], seed)
        mine = shelf.federation(config.settings.data, seed)
        theirs = catalogue.load(config.settings.data, seed)
        assert mine.train.index.equal(theirs.train.index) and mine.classes.equal(theirs.classes)
        assert mine.train.x.equal(theirs.train.x) and mine.name == theirs.name
    plain = replace(tiny(data).config(TABLE1[0], 0).settings.data, augment=False)
    assert shelf.federation(plain, 0).transform != mine.transform  # the same seed, other data


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit("killed")])
def test_a_stopped_run_goes_on_to_the_same_records(
    data: Path, tmp_path: Path, stop: BaseException
) -> None:
    study, rows = tiny(data, rounds=9), choose_rows("table1", "spdb-1-step")
    (whole,) = jobs_of(study, rows, tmp_path / "whole")
    assert whole.config.settings.checkpoint_every == 2
    run_jobs([whole], watching(Silent()))
    (broken,) = jobs_of(study, rows, tmp_path / "broken")
    expected = Interrupted if isinstance(stop, KeyboardInterrupt) else SystemExit
    with pytest.raises(expected) as error:
        run_jobs([broken], watching(Silent(stop, after=8)))
    if expected is Interrupted:
        assert str(error.value).endswith("the state is saved, the same command continues")
    saved = 8 if expected is Interrupted else 6  # a kill saves nothing more
    assert max(broken.folder.glob("checkpoint-*")).name == f"checkpoint-00000{saved}.safetensors"
    rounds = [0]

    class Count(Silent):
        def round(self, row: Mapping[str, Any], info: Any) -> None:
            rounds[0] += 1

    assert run_jobs([broken], watching(Count())) == 1
    assert rounds[0] == 9 - saved
    for name in ("metrics.jsonl", "graph_error.jsonl", "clients.safetensors"):
        assert (broken.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    files = [sorted(p.name for p in job.folder.rglob("*")) for job in (whole, broken)]
    assert files[0] == files[1]


def test_records_are_light(data: Path, tmp_path: Path) -> None:
    rows = choose_rows("table1", "dpsgd-1-step,scool-sbm")
    rows = [replace(row, options={**row.options, "steps": 1}) for row in rows]  # quick
    jobs = jobs_of(tiny(data, rounds=7, seeds=2), rows, tmp_path)
    run_jobs(jobs, watching(Silent()))
    kept = [sorted(int(f.stem) for f in (job.folder / "graphs").iterdir()) for job in jobs]
    assert kept == [[6], [0, 1, 4, 6], [6], [6]]  # pictures of the first seed of what is drawn
    for job in jobs:
        assert not list(job.folder.glob("checkpoint-*"))
        error = RunFolder(job.folder).rows("graph_error.jsonl")
        assert [row["round"] for row in error] == list(range(7))
        last = RunFolder(job.folder).rows()[-1]
        assert error[-1]["graph_l1"] == pytest.approx(last["graph_l1"], abs=1e-6)


def test_a_long_run_keeps_evaluated_rounds_and_all_that_was_spent(tmp_path: Path) -> None:
    folder = RunWriter.create(tmp_path / "run", {"status": "finished"})
    count = LONG + 10
    for t in range(count):
        scores = {"scores": [50.0]} if (t + 1) % 100 == 0 else {}
        spent = {"bytes": 3, "messages": 1, "epochs": 0.5, "traffic": {"mix": 3}}
        folder.append("metrics.jsonl", {"round": t, "train_loss": 1.0 / (t + 1), **spent, **scores})
        sent = {"rank_bytes": 2, "rank_traffic": {"mix": 2}}
        folder.append("timing.jsonl", {"round": t, "seconds": 0.25, **sent})
    tidy(folder.path)
    found = RunFolder(folder.path)
    rows, times = found.rows(), found.rows("timing.jsonl")
    assert (
        [r["round"] for r in rows] == [r["round"] for r in times] == [*range(99, 1000, 100), 1009]
    )
    assert sum(r["bytes"] for r in rows) == sum(r["traffic"]["mix"] for r in rows) == 3 * count
    assert sum(r["seconds"] for r in times) == 0.25 * count
    assert sum(r["rank_bytes"] for r in times) == 2 * count
    assert sum(r["rank_traffic"]["mix"] for r in times) == 2 * count
    assert sum(r["messages"] for r in rows) == 2 * sum(r["epochs"] for r in rows) == count
    assert rows[0]["train_loss"] == pytest.approx(sum(1 / (t + 1) for t in range(100)) / 100)
    before = (folder.path / "metrics.jsonl").read_bytes()
    tidy(folder.path)
    assert (folder.path / "metrics.jsonl").read_bytes() == before
    assert thin(rows, {r["round"] for r in rows}) == rows


def test_another_run_in_the_folder_is_refused(data: Path, tmp_path: Path) -> None:
    rows = choose_rows("table1", "dpsgd-1-step")
    (one,), (two,) = (jobs_of(tiny(data, rounds=n), rows, tmp_path) for n in (1, 2))
    run_jobs([one], watching(Silent()))
    two.folder.parent.mkdir()
    one.folder.rename(two.folder)
    with pytest.raises(RunError, match=r"made with settings\.rounds = 1, not 2: choose another"):
        run_jobs([two], watching(Silent()))
    two.folder.rename(one.folder)
    changed = [replace(rows[0], options={**rows[0].options, "lr": 0.5})]
    (job,) = jobs_of(tiny(data, rounds=1), changed, tmp_path)
    with pytest.raises(RunError, match=r"made with algorithm\.sgd\.lr = 0\.01, not 0\.5"):
        run_jobs([job], watching(Silent()))
    (own,) = jobs_of(tiny(data, rounds=1), rows, tmp_path)
    (other,) = jobs_of(tiny(data, rounds=1, seed=1), rows, tmp_path)
    own.folder.rename(other.folder)
    with pytest.raises(RunError, match=r"made with settings\.seed = 0, not 1"):
        run_jobs([other], watching(Silent()))


def test_only_what_is_finished_or_diverged_is_over(data: Path, tmp_path: Path) -> None:
    (job,) = jobs_of(tiny(data, rounds=1), choose_rows("table1", "dpsgd-1-step"), tmp_path)
    assert state_of(job) == "missing"
    run_jobs([job], watching(Silent()))
    (job.folder / "checkpoint-000001.safetensors").touch()
    assert state_of(job) == "over" and run_jobs([job], watching(Silent())) == 0
    assert not list(job.folder.glob("checkpoint-*"))  # a kill had come between
    for status, state in (("failed", "begun"), ("interrupted", "begun"), ("diverged", "diverged")):
        change_header(job.folder, status=status)
        assert state_of(job) == state
    (job.folder / "graphs" / "000000.safetensors").unlink()
    (job.folder / "graphs").rmdir()
    state_of(job)
    assert not (job.folder / "graphs").exists()  # asking changes nothing


def test_a_run_that_diverges_is_recorded_and_the_others_go_on(data: Path, tmp_path: Path) -> None:
    wild = Row("wild", "Wild", "local", options={"lr": 1e20, "epochs": 1})
    rows = [wild, *choose_rows("table1", "dpsgd-1-step")]
    jobs = jobs_of(tiny(data), rows, tmp_path)
    assert run_jobs(jobs, watching(Silent())) == 2
    status = [RunFolder(job.folder).header["status"] for job in jobs]
    assert status == ["diverged", "finished"]
    assert run_jobs(jobs, watching(Silent())) == 0


def test_time_left_is_that_of_runs_of_the_same_row(tmp_path: Path) -> None:
    jobs = jobs_of(Study(seeds=2), choose_rows("table1", "local,ditto,dada"), tmp_path)
    left = TimeLeft()
    assert left.of(jobs) is None
    left.add(jobs[0], 10.0)  # local
    assert left.of(jobs[1:]) == 50.0  # nothing else is known yet
    left.add(jobs[1], 40.0)  # ditto
    assert left.of(jobs[3:]) == 10.0 + 40.0 + 25.0
