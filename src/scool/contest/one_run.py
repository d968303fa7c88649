"""One run of a contest as one line of its log. This happens in a worker process."""

import math
import warnings
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from scool.contest.field import MASKED, may_answer_all, poisoned
from scool.contest.plan import Setting, Stage, Task
from scool.data.catalogue import load
from scool.data.federation import Federation
from scool.data.subset import at_most, some_clients, validation_as_test
from scool.errors import QuarantineError
from scool.evaluation.metrics import SCORE
from scool.evaluation.scores import finite
from scool.run.result import Result


def line_of(task: Task, data_dir: str | None) -> dict[str, Any]:
    """Carry a run out, and say what came out: the score of each client, and the costs. One that
    fails for a reason of its own has `failed`."""
    setting, entry, stage, options, seed = task
    federation = federation_of(setting, data_dir, stage, seed)
    search = setting.search(entry, data_dir)
    sizes = int(federation.train.mask.sum())
    line: dict[str, Any] = {
        "key": task.key,
        "setting": setting.name,
        "method": entry.name,
        "stage": stage,
        "options": options,
        "seed": seed,
    }
    try:
        job = search.job(entry.name, options, seed)
        if stage == "test" and setting.eval_every:
            job = replace(job, settings=replace(job.settings, eval_every=setting.eval_every))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # who was left out is said in the line
            result = job.run(federation)
    except QuarantineError as error:
        return line | {"score": None, "problem": str(error)}
    except Exception as error:  # the others go on, and this one is run again
        return line | {"score": None, "failed": f"{type(error).__name__}: {error}"}
    scores = scores_of(result, setting.metric)
    line |= {"score": finite(scores.nanmean()), "problem": _problem(result)}
    if stage == "test":
        line["scores"] = [None if number is None else round(number, 6) for number in _plain(scores)]
        line |= _over_rounds(setting, result)
        line |= _kinds(result)
        if federation.client_names is not None:
            line["owners"] = list(federation.client_names)
        line["split_ratio"] = round(int(federation.test.mask.sum()) / sizes, 4)
    return line | {
        "rounds": result.rounds,
        "bytes": result.bytes_sent,
        "epochs": result.epochs,
        "seconds": round(result.seconds, 2),
    }


def _over_rounds(setting: Setting, result: Result) -> dict[str, Any]:
    """The mean of the best evaluated round, and the masked accuracy of the last."""
    found: dict[str, Any] = {}
    name = f"{setting.metric}_mean"
    means = [row[name] for row in result.history if row.get(name) is not None]
    if setting.eval_every and means:
        found["best"] = max(means, key=lambda mean: setting.sign * mean)
    if setting.answers == "all":
        found["masked"] = result.history[-1].get(f"{MASKED}_mean")
    return found


def _kinds(result: Result) -> dict[str, Any]:
    """What a method with several kinds of model chose for each client at the end, and how well each
    kind did on what it holds out."""
    last = result.history[-1]
    return {
        name: {kind: [_short(value) for value in values] for kind, values in last[name].items()}
        for name in ("tracks", "held_out")
        if name in last
    }


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 4)


def scores_of(result: Result, metric: str) -> Tensor:
    """(K,) what each client is judged by; NaN where it is not defined."""
    if metric == SCORE[result.federation.task]:
        return result.score
    values = result.history[-1]["metrics"][metric]
    return torch.tensor([torch.nan if v is None else v for v in values], dtype=torch.float64)


def _plain(scores: Tensor) -> list[float | None]:
    return [finite(score) for score in scores]


def _problem(result: Result) -> str | None:
    """Whose numbers broke in training."""
    broken = result.health.lost("training")
    if broken:
        return f"clients {', '.join(map(str, broken))} diverged"
    return "some clients diverged" if result.history[-1].get("diverged") else None


@lru_cache(maxsize=4)
def _federation(setting: "_Named", data_dir: str | None, stage: Stage, seed: int) -> Federation:
    it = setting.setting
    federation = load(it.config(data_dir, stage), seed)
    if it.clients:
        federation = some_clients(federation, it.clients)
    if stage == "tune":
        federation = validation_as_test(federation)
    if it.samples:
        federation = at_most(federation, it.samples, seed)
    if it.answers == "all":
        federation = may_answer_all(federation)
    return poisoned(federation, it.poisoned, seed) if it.poisoned else federation


class _Named:
    """A setting that a cache can hold: equal by what decides its data."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        said = (setting.data, setting.clients, setting.samples, setting.validation)
        self.said = repr((*said, setting.answers, setting.poisoned))

    def __hash__(self) -> int:
        return hash(self.said)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Named) and other.said == self.said


def federation_of(setting: Setting, data_dir: str | None, stage: Stage, seed: int) -> Federation:
    """The clients of a seed. In stage one the validation samples stand where the test samples were,
    which are not in it, and a method that needs validation samples sets its own aside: it must not
    see those that it is judged by."""
    return _federation(_Named(setting), data_dir, stage, seed)
