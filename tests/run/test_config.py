"""Options by name, configurations as plain values, and the recipes."""

import dataclasses
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import scool
from scool.algorithms import METHODS, SCooL
from scool.data.catalogue import DataConfig
from scool.errors import ConfigError, RunError
from scool.evaluation.scores import describe_round
from scool.learning.local_sgd import LocalSGD
from scool.priors import SBM, Dirac
from scool.recording.folder import RunFolder
from scool.recording.seals import parse_header
from scool.run.config import RunConfig, Settings, config_of, default_run, recipe
from scool.run.identity import GONE
from scool.run.loop import fit
from scool.run.options import as_dict, option_names, with_options
from scool.sweep.comparison import Comparison
from study_records import BENCHMARKS, headers
from toys import classification, tanh_net


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("dataset", ["digits", "synthetic", "cifar10", "mini-imagenet", "mnist"])
def test_a_configuration_survives_json(method: str, dataset: str) -> None:
    for partition in ("auto", "sbm"):
        config = default_run(method, DataConfig(dataset=dataset, partition=partition))
        text = json.dumps(config.to_dict(), allow_nan=False)
        assert RunConfig.from_dict(json.loads(text)) == config


PATTERNS = "*/runs.tar.xz", "reproduction/*/runs.tar.xz", "*/run.json"
STUDIES = sorted({path.parent for pattern in PATTERNS for path in BENCHMARKS.glob(pattern)})


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)
def test_every_record_of_this_repository_can_be_run_again(study: Path) -> None:
    """But for those of an option that lost and is gone."""
    found = headers(study)
    assert found
    for folder, text in found.items():
        try:
            _can_be_run_again(parse_header(text), Path(folder))
        except Exception as error:
            error.add_note(f"the record is {study.name}/{folder}")
            raise


def _can_be_run_again(header: dict[str, Any], folder: Path) -> None:
    values = header["config"]
    lost: list[str] = []
    for option, usual in GONE.items():
        part, name = option.split(".")
        is_option = part != "algorithm" or values["method"].startswith("scool-")
        if is_option and values.get(part, {}).get(name, usual) != usual:
            lost.append(name)
    if lost:
        with pytest.raises(RunError, match=f"{lost[0]} = .* has it no more"):
            config_of(header, folder)
    else:
        assert config_of(header, folder).method == values["method"]


def test_an_option_that_is_gone_is_named_for_any_method_and_in_comparisons() -> None:
    values = default_run("local", DataConfig()).to_dict()
    values["settings"]["personal_pull"] = 0.0  # did nothing
    assert RunConfig.from_dict(values) == default_run("local", DataConfig())
    several = Comparison(("local",), Settings(), LocalSGD()).to_dict()
    for record, read in ((values, RunConfig.from_dict), (several, Comparison.from_dict)):
        record["settings"]["personal_pull"] = 1.0
        with pytest.raises(ConfigError, match=r"personal_pull = 1\.0 .* has it no more"):
            read(record)


def test_what_a_recipe_does_between_rounds_is_its_own_in_a_comparison() -> None:
    found = {}
    for momentum in (0.0, 0.3):
        settings = Settings(data=DataConfig(), slow_momentum=momentum)
        comparison = Comparison(("scool-sbm", "scool-drawn"), settings, LocalSGD())
        for run in comparison.runs(0):
            between = run.settings.slow_momentum, run.settings.model_average
            found[run.method, momentum] = between
    assert found["scool-sbm", 0.0] == (0.0, 0.0) and found["scool-drawn", 0.0] == (0.5, 0.8)
    assert found["scool-sbm", 0.3] == (0.3, 0.0) and found["scool-drawn", 0.3] == (0.3, 0.8)
    options = {"scool-drawn": {"slow-momentum": 0, "num_blocks": 2}}
    (run,) = Comparison(("scool-drawn",), Settings(), LocalSGD(), options=options).runs(0)
    assert (run.settings.slow_momentum, run.settings.model_average) == (0.0, 0.8)
    assert run.algorithm.prior.num_blocks == 2
    slow = {"dpsgd": {"slow_momentum": 0.5}}
    runs = Comparison(("local", "dpsgd"), Settings(), LocalSGD(), options=slow).runs(0)
    assert [run.settings.slow_momentum for run in runs] == [0.0, 0.5]
    with pytest.raises(ConfigError, match=r"slow_momentum = 2\.0 is not possible"):
        Comparison(("local",), Settings(), LocalSGD(), options={"local": {"slow_momentum": 2.0}})
    with pytest.raises(ConfigError, match=r"slow_momentum = 0\.5"):  # before anything starts
        Comparison(("ifca",), Settings(), LocalSGD(), options={"ifca": {"slow_momentum": 0.5}})
    with pytest.raises(ConfigError, match="checkpoint_every = 0"):
        Comparison(("local",), Settings(checkpoint_every=0), LocalSGD())


def test_a_changed_configuration_survives_json_too() -> None:
    config = default_run("scool-sbm", DataConfig())
    algorithm = with_options(
        config.algorithm, {"null_loglik": [-1.0, -2.5], "num_blocks": 7, "lr": 1}, "test"
    )
    settings = with_options(Settings(), {"hidden": [5, 4], "seed": 3, "data_dir": "x"}, "test")
    config = RunConfig("scool-sbm", algorithm, settings)
    again = RunConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config and again.algorithm.prior.null_loglik == (-1.0, -2.5)
    matrix = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    own = SCooL(prior=Dirac(matrix=matrix))
    back = with_options(default_run("scool-dirac", DataConfig()).algorithm, as_dict(own), "test")
    assert torch.equal(back.prior.matrix, matrix)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_option_can_be_set_by_name(method: str) -> None:
    """The value it has, given by its own name, changes nothing; so the name is known."""
    algorithm = default_run(method, DataConfig()).algorithm
    flat: dict[str, Any] = {}

    def collect(part: Any) -> None:
        for f in dataclasses.fields(part):
            value = getattr(part, f.name)
            collect(value) if dataclasses.is_dataclass(value) else flat.update({f.name: value})

    collect(algorithm)
    assert set(flat) == option_names(algorithm)
    assert with_options(algorithm, flat, "test") == algorithm
    dashed = {name.replace("_", "-"): value for name, value in flat.items()}
    assert with_options(algorithm, dashed, "test") == algorithm


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_block": 3}, "did you mean 'num_blocks'"),
        ({"num_blocks": "three"}, "give a whole number"),
        ({"num_blocks": True}, "give a whole number"),
        ({"lr": "fast"}, "give a number"),
        ({"learn_B": 1}, "give true or false"),
        ({"weighting": "rows"}, "give 'row' or 'paper'"),
        ({"fraction": 2.0}, "fraction"),
        ({"prior": {"num_block": 3}}, "test.prior"),
        ({"null_loglik": [1.0, "a"]}, "null_loglik"),
        ({"prior": 3}, "unknown option 'prior'"),
    ],
)
def test_wrong_options_say_what_would_be_right(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_options(SCooL(), options, "test")


def test_tables_of_a_part_and_paths() -> None:
    changed = with_options(SCooL(), {"prior": {"num_blocks": 9}, "sgd": {"lr": 1}}, "test")
    assert changed.prior.num_blocks == 9 and changed.sgd.lr == 1.0

    @dataclasses.dataclass(frozen=True)
    class WithPath:
        out: Path | None = None

    assert with_options(WithPath(), {"out": "a/b"}, "test").out == Path("a/b")


def test_settings_are_checked() -> None:
    for option in (
        {"rounds": 0},
        {"seed": -1},
        {"eval_every": 0},
        {"checkpoint_every": -1},
        {"slow_momentum": 1.5},
        {"model_average": -0.1},
    ):
        with pytest.raises(ConfigError, match=next(iter(option))):
            Settings(**option)
    with pytest.raises(ConfigError, match="client_chunk"):
        Settings(client_chunk=-1)


def test_recipes_know_the_papers_settings() -> None:
    paper = recipe("scool-sbm", DataConfig(dataset="cifar10"))
    assert (paper.rounds, paper.model.model) == (100, "cnn2")
    assert paper.algorithm.sgd == LocalSGD(lr=0.01, epochs=5, batch_size=10)
    assert paper.algorithm.fraction == 0.1
    for dataset, fraction, blocks in (("cifar10", 0.2, 5), ("mini-imagenet", 0.1, 10)):
        groups = recipe("scool-sbm", DataConfig(dataset=dataset, partition="sbm")).algorithm
        assert isinstance(groups, SCooL) and isinstance(groups.prior, SBM)
        assert (groups.fraction, groups.prior.num_blocks) == (fraction, blocks)
    halves = DataConfig(dataset="cifar10", partition="sbm", classes_per_client=5)
    assert recipe("l2c", halves).algorithm.fraction == 0.5
    released = recipe("scool-attention-released", DataConfig(dataset="cifar10", partition="sbm"))
    assert released.algorithm.prior.temperature == 9.0 and released.algorithm.fraction == 0.2
    assert released.model.relu_logits
    with pytest.raises(ConfigError, match="did you mean 'scool-sbm'"):
        recipe("scool-sbn", DataConfig())


def test_run_json_of_another_version_or_from_python(tmp_path: Path) -> None:
    for values in ({"format": "scool-run-9"}, {"format": "scool-run-9", "rounds": "ten"}):
        (tmp_path / "run.json").write_text(json.dumps(values))
        with pytest.raises(RunError, match=r"run\.json is of another version: .* Use that version"):
            RunFolder(tmp_path).header  # noqa: B018
    (tmp_path / "run.json").write_text('{"format": "scool-graph-1"}')
    with pytest.raises(RunError, match=r"run\.json is damaged: its format is 'scool-graph-1'"):
        RunFolder(tmp_path).header  # noqa: B018
    with pytest.raises(RunError, match=r"scool.fit"):
        config_of({"format": "scool-run-1", "config": None}, Path("x"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": ...}, "it lacks 'method'"),
        ({"algorithm": ...}, "it lacks 'algorithm'"),
        ({"algorithm": 3}, "cannot be used"),
        ({"settings": {"rounds": "x"}}, "rounds = 'x'"),
        ({"method": ["local"]}, "cannot be used"),
        ({"method": "locla"}, "did you mean 'local'"),
    ],
)
def test_a_damaged_configuration_names_its_file(change: dict[str, Any], message: str) -> None:
    config = default_run("local", DataConfig()).to_dict() | change
    config = {name: value for name, value in config.items() if value is not ...}
    for damaged in (config, "text"):
        with pytest.raises(RunError, match=r"x.run\.json cannot be used") as refused:
            config_of({"format": "scool-run-1", "config": damaged}, Path("x"))
        assert damaged == "text" or message in str(refused.value)


def test_a_comparison_survives_json_and_refuses_nonsense() -> None:
    options = {"scool-sbm": {"num_blocks": 3}}
    made = Comparison(("local", "scool-sbm"), Settings(), LocalSGD(), seeds=2, options=options)
    again = Comparison.from_dict(json.loads(json.dumps(made.to_dict())))
    assert again.runs(1) == made.runs(1)
    assert made.runs(5)[1].algorithm.prior.num_blocks == 3 and made.runs(5)[0].settings.seed == 5
    for methods, message in (
        ((), "at least one"),
        (("local", "local"), "once"),
        (("locla",), "did you mean 'local'"),
    ):
        with pytest.raises(ConfigError, match=message):
            Comparison(methods, Settings(), LocalSGD())
    with pytest.raises(ConfigError, match="did you mean 'num_blocks'"):
        Comparison(("scool-sbm",), Settings(), LocalSGD(), options={"scool-sbm": {"num_block": 3}})
    with pytest.raises(ConfigError, match=r"options of 'fedavg' .* it is not compared"):
        Comparison(("local",), Settings(), LocalSGD(), options={"fedavg": {"participation": 7}})
    with pytest.raises(RunError, match="another version"):
        Comparison.from_dict({"format": "scool-compare-9"})


def test_rows_hold_only_what_json_can() -> None:
    from toys import classification, start

    federation = classification()
    engine, _ = start(federation)
    info = {
        "train_loss": torch.tensor([1.0, torch.nan]),
        "graph": torch.eye(4),
        "vector": torch.tensor([1.0, torch.nan, torch.inf]),
        "blocks": torch.tensor([1, 2]),
        "number": float("inf"),
    }
    row = describe_round(0, info, None, engine, federation)
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert row["train_loss"] == 1.0 and row["vector"] == [1.0, None, None]
    assert row["blocks"] == [1, 2] and row["number"] is None


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: LocalSGD(epochs=1.5), "epochs = 1.5 is not possible: give a whole number"),
        (lambda: LocalSGD(lr="a"), "lr = 'a' is not possible: give a number"),
        (lambda: LocalSGD(nesterov=1), "nesterov = 1 is not possible: give True or False"),
        (lambda: scool.IFCA(num_clusters=2.5), "num_clusters = 2.5"),
        (lambda: scool.Ditto(lam="a"), "lam = 'a'"),
        (lambda: scool.DPSGD(topology=3), "topology = 3 is not possible: give a text"),
        (lambda: scool.PENS(top=True), "top = True is not possible: give a whole number"),
        (
            lambda: scool.DPSGD(weights=np.eye(3)),
            "matrix = 'ndarray' is not possible",
        ),
        (lambda: Dirac(matrix=np.eye(3)), "matrix = 'ndarray' is not possible"),
        (lambda: scool.DPSGD(sgd=0.1), "sgd = 0.1 is not possible: give LocalSGD(...)"),
        (lambda: scool.SCooL(draw=None), "draw = None is not possible: give CrossDraw(...)"),
        (lambda: scool.load("digits"), "config = 'digits' is not possible: give a DataConfig"),
    ],
)
def test_options_have_their_types(build: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build()
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr_decay": 0.9}, "lr_decay = 0.9 has no effect with lr_schedule = 'constant'"),
        ({"lr_schedule": "exponential"}, "lr_schedule = 'exponential' has no effect"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum = 0.9 has no effect with optimizer"),
    ],
)
def test_what_has_no_effect_is_mentioned(options: dict[str, Any], words: str) -> None:
    with pytest.warns(UserWarning, match=words):
        fit(classification(), tanh_net(), scool.LocalOnly(sgd=LocalSGD(**options)), rounds=1)


@pytest.mark.parametrize(
    ("rounds", "options", "remedy"),
    [
        (
            3,
            {"peers": "drawn", "sparsify_round": 2},
            "run at least 4, or give sparsify_round = 1 or less",
        ),
        (1, {"peers": "drawn", "sparsify_round": 0}, "run at least 2$"),
        (3, {"peers": "drawn", "sparsify_round": 1}, ""),
        (3, {"sparsify_round": 2}, ""),
    ],
)
def test_what_is_for_sparse_graphs_is_mentioned_where_there_are_none(
    rounds: int, options: dict[str, Any], remedy: str
) -> None:
    algorithm = scool.SCooL(prior=scool.SBM(num_blocks=2), fraction=0.5, **options)
    words = rf"peers = 'drawn' has no effect in {rounds} rounds with .*: {remedy}"
    expected = pytest.warns(UserWarning, match=words) if remedy else nullcontext()
    with expected:
        fit(classification(), tanh_net(), algorithm, rounds=rounds)


def test_numbers_of_other_libraries_are_numbers() -> None:
    sgd = LocalSGD(lr=np.float32(0.5), epochs=np.int64(2))  # type: ignore[arg-type]
    assert (sgd.lr, sgd.epochs) == (0.5, 2) and LocalSGD(lr=1).lr == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rounds": 2.5}, "rounds = 2.5 is not possible: give a whole number"),
        ({"algorithm": "local"}, "algorithm = 'local' is not possible: give a method"),
        ({"algorithm": scool.LocalOnly}, "is not possible: give a method, e.g. scool."),
    ],
)
def test_fit_refuses_what_is_no_method_or_number(options: dict[str, Any], words: str) -> None:
    federation = scool.digits(num_clients=4, groups=2, seed=0)
    arguments = {"algorithm": scool.LocalOnly(), "rounds": 1} | options
    with pytest.raises(ConfigError) as caught:
        scool.fit(federation, "linear", arguments.pop("algorithm"), **arguments)
    assert words in str(caught.value)
