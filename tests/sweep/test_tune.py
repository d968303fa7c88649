"""A search: the same budget for all, validation data only, no finished run twice."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from records import make_old, write_runs, write_sealed
from scool.data.catalogue import DataConfig, load
from scool.data.federation import Federation
from scool.errors import ConfigError, DataError, RunError
from scool.evaluation.scores import evaluate
from scool.models import ModelConfig
from scool.run.config import Settings
from scool.run.loop import Interrupted, carry_out
from scool.run.prepare import prepare_model
from scool.sweep import runner
from scool.sweep import tune as tune_module
from scool.sweep.search import Search
from scool.sweep.search_folder import read_chosen, searched_data
from scool.sweep.tune import judged_by_validation
from toys import classification, start

DATA = DataConfig(clients=4, groups=2, samples_per_client=20, val_fraction=0.2)
SETTINGS = Settings(data=DATA, model=ModelConfig("linear"), rounds=2, device="cpu")
SPACE = {"lr": (0.05, 0.2), "epochs": (1,)}


def search(*methods: str, **changes: Any) -> Search:
    options = {"methods": methods or ("local",), "settings": SETTINGS, "space": SPACE}
    return Search.of(**(options | changes))


def run_search(search: Search, out: Path) -> Any:
    return tune_module.run_search(search, out).chosen


def rows(out: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "tune.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in line if name != "seal"} for line in lines]


# ---------------------------------------------------------------------- never on test data


def test_the_test_samples_are_not_in_the_federation_of_a_search() -> None:
    federation = load(DATA, 0)
    judged = judged_by_validation(federation)
    assert judged.test is judged.val is federation.val
    assert judged.train is federation.train and "validation" in judged.name
    taken = {(i, int(row)) for i in range(4) for row in federation.test.index[i]}
    found = {
        (i, int(row))
        for split in (judged.train, judged.val, judged.test)
        for i in range(4)
        for row in split.index[i][split.mask[i]]
    }
    assert not taken & found


def test_test_data_that_are_spoilt_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_search(search("local", "scool-sbm", "fedavg"), tmp_path / "a")
    seen: list[Federation] = []

    def spoilt(data: DataConfig, seed: int) -> Federation:
        federation = load(data, seed)
        wrong = federation.test.y.roll(1, dims=1)
        return replace(federation, test=federation.test._replace(y=wrong))

    def watched(federation: Federation, *words: Any, **options: Any) -> Any:
        seen.append(federation)
        assert options["out"] is None  # no run folder that could hold a test accuracy
        return carry_out(federation, *words, **options)

    monkeypatch.setattr(tune_module, "load", spoilt)
    monkeypatch.setattr(runner, "carry_out", watched)
    run_search(search("local", "scool-sbm", "fedavg"), tmp_path / "b")
    assert (tmp_path / "a/tune.jsonl").read_bytes() == (tmp_path / "b/tune.jsonl").read_bytes()
    assert len(seen) == 6 and all(federation.test is federation.val for federation in seen)


def test_the_score_is_the_mean_accuracy_on_the_validation_split(tmp_path: Path) -> None:
    one = search(space={"lr": (0.2,), "epochs": (3,)})
    (chosen,) = run_search(one, tmp_path / "t")
    federation = load(DATA, 0)
    module, theta0 = prepare_model(SETTINGS.model, federation, 0)
    engine, _ = start(federation, module, seed=0)
    method = one.job("local", {"lr": 0.2, "epochs": 3}, 0).algorithm
    state = method.init(engine, theta0)
    for t in range(2):
        state, _ = method.step(engine, state, t)
    scores = 100 * evaluate(engine, state.theta, federation, "val").score
    assert chosen["validation_mean"] == pytest.approx(float(scores.mean()))
    assert chosen["validation_std"] == pytest.approx(float(scores.std(correction=0)))
    other = 100 * evaluate(engine, state.theta, federation, "test").score
    assert abs(float(other.mean()) - chosen["validation_mean"]) > 1


def test_a_client_without_validation_samples_is_refused() -> None:
    with pytest.raises(DataError, match=r"client 0 has 5 training samples and none .*fraction"):
        judged_by_validation(classification())
    few = replace(SETTINGS, data=replace(DATA, samples_per_client=4))
    with pytest.raises(DataError, match="raise --val-fraction"):
        run_search(search(settings=few), Path("never"))
    assert not Path("never").exists()
    with pytest.raises(ConfigError, match=r"val_fraction = 0.0 .* 0.2"):
        search(settings=replace(SETTINGS, data=replace(DATA, val_fraction=0.0)))


# ---------------------------------------------------------------------- the same budget


def test_every_method_has_the_same_number_of_runs(tmp_path: Path) -> None:
    space = {"lr": (0.05, 0.2), "temperature": (0.5, 1.0, 2.0), "epochs": (1,)}
    both = search("local", "scool-sbm", "scool-mmsbm", space=space, seeds=2)
    chosen = run_search(both, tmp_path / "t")
    assert [row["candidates"] for row in chosen] == [6, 6, 6]
    assert [row["runs"] for row in chosen] == [12, 12, 12]
    counts = [sum(row["method"] == m for row in rows(tmp_path / "t")) for m in both.methods]
    assert counts == [12, 12, 12]
    assert {row["seed"] for row in rows(tmp_path / "t")} == {0, 1}
    assert chosen[0]["skipped"] == ["temperature"] and chosen[1]["skipped"] == []
    assert "temperature" not in chosen[0]["options"] and "temperature" in chosen[1]["options"]


def test_a_small_budget_takes_a_random_part_and_a_large_one_values_in_between() -> None:
    grid = {"lr": (0.1, 0.2, 0.4), "temperature": (1, 2, 4)}
    few = search("scool-sbm", "local", space=grid, budget=4)
    picked = few.candidates("scool-sbm")
    assert len(picked) == 4 and picked == few.candidates("scool-sbm")
    assert all(p["lr"] in grid["lr"] and p["temperature"] in grid["temperature"] for p in picked)
    others = [
        search("scool-sbm", "local", space=grid, budget=4, settings=replace(SETTINGS, seed=seed))
        for seed in (1, 2, 3)
    ]
    assert any(other.candidates("scool-sbm") != picked for other in others)
    alike = search("scool-sbm", "scool-mmsbm", space=grid, budget=4)
    assert alike.candidates("scool-mmsbm") == picked
    lrs = [options["lr"] for options in few.candidates("local")]
    assert lrs[:3] == [0.1, 0.2, 0.4] and lrs[3] in (0.141, 0.283)  # geometric means
    many = search("local", space={"lr": (0.1, 0.4)}, budget=5)
    assert [o["lr"] for o in many.candidates("local")] == [0.1, 0.4, 0.2, 0.141, 0.283]
    assert len(search("local", space=SPACE, budget=7, seeds=3).candidates("local")) == 2


def test_words_and_whole_numbers_have_nothing_in_between() -> None:
    space = {"batch_size": (4, 8), "optimizer": ("sgd", "adam"), "lr": (0.1,)}
    assert len(search("local", space=space, budget=9).candidates("local")) == 4
    from_zero = search("scool-sbm", space={"cross_ema": (0, 0.5)}, budget=3)
    assert [o["cross_ema"] for o in from_zero.candidates("scool-sbm")] == [0, 0.5, 0.25]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ()}, "at least one"),
        ({"methods": ("locl",)}, "did you mean 'local'"),
        ({"methods": ("local", "local")}, "once"),
        ({"budget": -1}, "budget"),
        ({"budget": 1, "seeds": 2}, "a candidate takes 2 runs"),
        ({"seeds": 0}, "seeds"),
        ({"space": {"lrr": (1,)}}, "none of the methods has an option 'lrr'.*'lr'"),
        ({"space": {"model_average": (0.8, 0.9)}}, "option of the run.*give --model-average VALUE"),
        ({"space": {"temperature": (1,)}}, "none of the methods"),
        ({"space": {"lr": ()}}, "lr"),
        ({"space": {"lr": (0.1, 0.1)}}, "each value once"),
        ({"space": {"lr": (0.1, -1)}}, "lr = -1"),
        ({"space": {"lr": ("x",)}}, "give a number"),
    ],
)
def test_mistakes_are_found_before_anything_runs(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        search(**changes)


# ---------------------------------------------------------------------- the choice


def test_the_best_mean_over_the_seeds_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {0.1: (90.0, 10.0), 0.2: (60.0, 50.0), 0.4: (55.0, 54.0)}

    def score(job: Any, federation: Any, recorders: Any) -> dict[str, Any]:
        value = scores[job.algorithm.sgd.lr][job.settings.seed]
        return {"score": value, "spread": 1.0, "problem": None}

    monkeypatch.setattr(tune_module, "_score", score)
    three = search("local", space={"lr": (0.1, 0.2, 0.4)}, seeds=2)
    (chosen,) = run_search(three, tmp_path / "a")
    assert chosen["options"] == {"lr": 0.2} and chosen["validation_mean"] == 55.0
    assert chosen["at_the_edge"] == []
    scores[0.4] = (56.0, 55.0)
    (chosen,) = run_search(three, tmp_path / "b")
    assert chosen["options"] == {"lr": 0.4} and chosen["at_the_edge"] == ["lr"]
    assert read_chosen(tmp_path / "b") == {"local": {"lr": 0.4}}
    means = [candidate["score"] for candidate in chosen["tried"]]
    assert means == [50.0, 55.0, 55.5]


def test_a_candidate_that_diverges_is_never_chosen(tmp_path: Path) -> None:
    data = DataConfig(dataset="synthetic", task="regression", clients=3, groups=1, val_fraction=0.2)
    settings = Settings(data=data, model=ModelConfig("linear"), rounds=2, device="cpu")
    wild = search(settings=settings, space={"lr": (0.02, 1e30)})
    (chosen,) = run_search(wild, tmp_path / "a")
    assert chosen["options"] == {"lr": 0.02}
    found = rows(tmp_path / "a")
    assert found[1]["score"] is None and "nobody is left" in found[1]["problem"]
    worse = search(settings=settings, space={"lr": (1e29, 1e30)})
    (chosen,) = run_search(worse, tmp_path / "b")
    assert chosen["options"] is None and chosen["validation_mean"] is None
    assert read_chosen(tmp_path / "b") == {}
    json.dumps(chosen, allow_nan=False)


def test_a_candidate_that_loses_some_clients_is_not_chosen(tmp_path: Path) -> None:
    """The clients that break keep a finite model and would be scored with it."""
    data = DataConfig(dataset="synthetic", clients=20, val_fraction=0.2)
    settings = Settings(data=data, model=ModelConfig("linear"), rounds=4, device="cpu")
    wild = search(settings=settings, space={"lr": (1e-9, 1e37)})
    (chosen,) = run_search(wild, tmp_path / "a")
    tame, broken = rows(tmp_path / "a")
    assert tame["score"] is not None and chosen["options"] == {"lr": 1e-9}
    assert broken["score"] is None and "diverged" in broken["problem"]
    assert "nobody is left" not in broken["problem"]  # some went on
    assert chosen["tried"][1]["problems"] == [broken["problem"]]


# ---------------------------------------------------------------------- stopping and going on


def test_a_finished_run_is_never_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = search("local", "fedavg", seeds=2)
    expected = run_search(both, tmp_path / "whole")
    begun: list[str] = []

    def stopping(*words: Any, **options: Any) -> Any:
        if len(begun) == 3:
            raise KeyboardInterrupt
        begun.append(options["method"])
        return carry_out(*words, **options)

    monkeypatch.setattr(runner, "carry_out", stopping)
    with pytest.raises(Interrupted, match=r"3 of 8 runs are finished; .*the same `scool tune`"):
        run_search(both, tmp_path / "parts")
    with pytest.raises(RunError, match="not finished"):
        read_chosen(tmp_path / "parts")
    path = tmp_path / "parts/tune.jsonl"
    path.write_bytes(path.read_bytes()[:-9])  # killed while the third line was written
    again: list[str] = []

    def counting(*words: Any, **options: Any) -> Any:
        again.append(options["method"])
        return carry_out(*words, **options)

    monkeypatch.setattr(runner, "carry_out", counting)
    assert run_search(both, tmp_path / "parts") == expected
    assert len(again) == 6 and not set(again) & set(begun[:2])
    assert path.read_bytes() == (tmp_path / "whole/tune.jsonl").read_bytes()
    assert run_search(both, tmp_path / "parts") == expected and len(again) == 6


RUN = '{"method": "local", "options": {}, "seed": 0, "score": 1.0, "spread": null, "problem": null}'


@pytest.mark.parametrize(
    ("damaged", "flaw"),
    [
        ("{}", "it lacks 'method'"),
        ("7", "it holds no JSON object"),
        ("null", "it holds no JSON object"),
        ('{"method": "local", "options": [1]}', r"options = \[1\] is not a JSON object"),
        ('{"method": "local", "options": {}, "seed": 0}', "it lacks 'score'"),
        (
            RUN.replace("1.0", "NaN"),
            "score = nan is not a finite number or null",
        ),
        ('{"method": "loc', "Unterminated string"),
        ("[" * 100_000, "recursion"),
        (f'{RUN[:-1]}, "score": 1e999}}', "score = inf is not"),
        (f'{RUN[:-1]}, "seed": true}}', "seed = True is not a whole number"),
    ],
)
@pytest.mark.parametrize("is_old", [False, True])
def test_a_line_that_is_no_finished_run_is_named(
    tmp_path: Path, damaged: str, flaw: str, is_old: bool
) -> None:
    run_search(search(), tmp_path / "t")
    if is_old:
        make_old(tmp_path / "t", "tune.json")
    path = tmp_path / "t/tune.jsonl"
    first, second = path.read_text().splitlines()
    text = f"{first}\n{damaged}\n{second}\n"
    path.write_text(text)
    flaw = flaw if is_old else "it has no checksum"
    with pytest.raises(RunError, match=rf"tune\.jsonl is damaged: line 2: .*{flaw}.*Delete that"):
        run_search(search(), tmp_path / "t")
    assert path.read_text() == text  # nothing is lost


def test_a_sealed_line_is_checked_for_what_it_says_and_where_it_stands(tmp_path: Path) -> None:
    expected = run_search(search(), tmp_path)
    path = tmp_path / "tune.jsonl"
    whole = path.read_text()
    first, second = whole.splitlines()
    other = first.replace('"seed": 0', '"seed": 1')
    assert other != first
    for text in (f"{other}\n{second}\n", f"{second}\n", f"{second}\n{first}\n"):
        path.write_text(text)
        with pytest.raises(RunError, match=r"damaged: line 1: it does not match its checksum, or"):
            run_search(search(), tmp_path)
        assert path.read_text() == text
    path.write_text(whole)
    run, last = rows(tmp_path)
    write_runs(tmp_path, [run | {"score": "high"}, last])
    with pytest.raises(RunError, match=r"damaged: line 1: score = 'high' is not a finite number"):
        run_search(search(), tmp_path)
    path.write_text("")  # what the message advises
    assert run_search(search(), tmp_path) == expected and path.read_text() == whole


def test_a_search_of_the_first_format_goes_on_and_is_sealed(tmp_path: Path) -> None:
    expected = run_search(search(), tmp_path)
    path = tmp_path / "tune.jsonl"
    whole = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    make_old(tmp_path, "tune.json")
    old = path.read_text()
    assert read_chosen(tmp_path) == {"local": expected[0]["options"]}
    path.write_text(old.splitlines()[0] + "\n")
    assert run_search(search(), tmp_path) == expected
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == whole
    path.write_text(old)  # killed after tune.json was sealed, and before this was
    assert run_search(search(), tmp_path) == expected
    assert path.read_bytes() == whole["tune.jsonl"]


def test_a_finished_search_that_lacks_what_it_chose_is_named(tmp_path: Path) -> None:
    run_search(search(), tmp_path)
    path = tmp_path / "tune.json"
    whole = json.loads(path.read_text())
    for name, read in (("chosen", read_chosen), ("search", searched_data)):
        write_sealed(path, {key: whole[key] for key in whole if key != name})
        with pytest.raises(RunError, match=rf"tune\.json is damaged: it lacks '{name}'"):
            read(tmp_path)
        write_sealed(path, whole | {name: [7]})
        with pytest.raises(RunError, match=r"tune\.json is damaged: it holds no|\[7\] is not"):
            read(tmp_path)
        path.write_text(json.dumps(whole | {name: whole[name] * 2 if name == "chosen" else {}}))
        with pytest.raises(RunError, match=r"tune\.json is damaged: .* match its checksum"):
            read(tmp_path)
    write_sealed(path, whole | {"chosen": [{"method": "local", "options": 7}]})
    for text in ("", "{}", path.read_text()):
        path.write_text(text)
        with pytest.raises(RunError, match=r"tune\.json is damaged: .* search again"):
            read_chosen(tmp_path)
    write_sealed(path, whole)
    assert read_chosen(tmp_path)


def test_runs_of_no_candidate_or_seed_of_the_search_do_not_count(tmp_path: Path) -> None:
    expected = run_search(search(), tmp_path)
    found = rows(tmp_path)
    others = ({"seed": 5}, {"method": "fedavg"}, {})  # the last is the same once more
    found += [found[0] | other for other in others]
    write_runs(tmp_path, [*found, found[0] | {"seed": 5, "score": 99.0}])
    assert run_search(search(), tmp_path) == expected and len(rows(tmp_path)) == 6


def test_a_last_line_without_its_end_is_not_written_on(tmp_path: Path) -> None:
    expected = run_search(search(), tmp_path)
    path = tmp_path / "tune.jsonl"
    whole = path.read_text()
    path.write_text(whole.splitlines()[0])  # one of two runs, and no end of line
    assert run_search(search(), tmp_path) == expected
    assert path.read_text() == whole


@pytest.mark.parametrize("is_old", [False, True])
def test_a_search_from_before_an_option_or_with_one_that_is_gone_goes_on(
    tmp_path: Path, is_old: bool
) -> None:
    expected = run_search(search(), tmp_path)
    path = tmp_path / "tune.json"
    values = json.loads(path.read_text())
    del values["search"]["settings"]["model_average"]
    values["search"]["settings"]["personal_pull"] = 0.0
    write_sealed(path, values)
    if is_old:
        make_old(tmp_path, "tune.json")
    assert run_search(search(), tmp_path) == expected
    values["search"]["settings"]["forgotten"] = 1
    write_sealed(path, values)
    with pytest.raises(RunError, match="another search"):
        run_search(search(), tmp_path)


def test_another_search_or_other_files_are_not_touched(tmp_path: Path) -> None:
    run_search(search(), tmp_path / "t")
    with pytest.raises(RunError, match="another search"):
        run_search(search(budget=1), tmp_path / "t")
    with pytest.raises(RunError, match="another search"):
        run_search(search(settings=replace(SETTINGS, seed=7)), tmp_path / "t")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    with pytest.raises(RunError, match="exists already"):
        run_search(search(), tmp_path / "mine")
    (tmp_path / "t/tune.json").write_text('{"format": "scool-tune-7"}')
    with pytest.raises(RunError, match=r"tune\.json is of another version: .* Use that version"):
        read_chosen(tmp_path / "t")
    with pytest.raises(RunError, match="a folder of `scool tune`"):
        read_chosen(tmp_path / "nowhere")
    assert torch.is_grad_enabled()
