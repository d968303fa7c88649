"""Which kinds of cooperation should `scool` have? Judged on validation data alone.

    python benchmarks/kinds.py runs/kinds.jsonl --datasets cifar10 --data-dir data --seconds 540
    python benchmarks/kinds.py runs/kinds.jsonl --datasets digits --rounds 30
    python benchmarks/kinds.py runs/kinds.jsonl --datasets wisdm,school --data-dir DIR

Candidates of the recommended method, and the two methods that it has to reach: on the paper's
partitions of images, on digits, and on federations of real owners, there as `scool reproduce
natural` has them, with the middle learning rate. A fifth of the training samples stands where the
test samples were, which are not in the federation; `scool` sets its own aside from the rest. So
nobody sees what it is judged by, unlike in `scool tune`. The next run is begun if it fits into what
is left; a run that is in the file is done.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from scool.contest.plan import Entry, read_study
from scool.data.catalogue import DataConfig, load
from scool.data.subset import validation_as_test
from scool.models import ModelConfig
from scool.run.config import default_run
from scool.run.options import with_options
from scool.sweep.runner import Job

FOUR = "alone,body,graph,common"
CANDIDATES: dict[str, tuple[str, dict[str, Any]]] = {
    "scool-sbm": ("scool-sbm", {}),
    "scool-drawn": ("scool-drawn", {}),
    "four kinds": ("scool", {"kinds": FOUR}),
    "with drawn": ("scool", {"kinds": f"{FOUR},drawn"}),
    "drawn for graph": ("scool", {"kinds": "alone,body,common,drawn"}),
    "without a graph": ("scool", {"kinds": "alone,body,common"}),
    "random peers": ("scool-drawn", {"temperature": 1e6}),
}
SECONDS = dict.fromkeys(("scool-sbm", "scool-drawn", "random peers"), 30)
"""A guess for 40 rounds on one H200; others: OURS."""
OURS = 200
IMAGES = ("cifar10", "cifar100")


def data_of(given: argparse.Namespace) -> Iterator[DataConfig]:
    for dataset in given.datasets.split(","):
        for partition in ("noniid", "sbm") if dataset in IMAGES else ("auto",):
            yield DataConfig(
                dataset=dataset,
                partition=partition,  # type: ignore[arg-type]
                data_dir=given.data_dir,
                clients=given.clients if dataset in IMAGES else 0,
                val_fraction=0.2,
                verify_checksums=not given.no_verify_checksums,
            )


def job_of(name: str, data: DataConfig, given: argparse.Namespace) -> Job:
    method, options = CANDIDATES[name]
    config = with_options(default_run(method, data), options, name)
    settings, algorithm, model = config.settings, config.algorithm, config.settings.model
    if data.dataset not in (*IMAGES, "digits"):
        (setting,) = read_study("natural", data.dataset).settings
        entry = Entry(name, name, method=method, options=options)
        job, middle = setting.job(entry), setting.rates[1]
        algorithm = replace(job.algorithm, sgd=replace(job.algorithm.sgd, lr=middle))
        settings = replace(settings, rounds=setting.rounds)
    if given.epochs:
        algorithm = replace(algorithm, sgd=replace(algorithm.sgd, epochs=given.epochs))
    rounds = given.rounds or (40 if data.dataset in IMAGES else settings.rounds)
    about: Any = {"seed": given.seed, "device": given.device, "checkpoint_every": 0}
    settings = replace(settings, rounds=rounds, eval_every=rounds, **about)
    return Job(name, algorithm, ModelConfig(given.model) if given.model else model, settings)


def line_of(job: Job, federation: Any) -> dict[str, Any]:
    result = job.run(federation)
    last = result.history[-1]
    return {
        "masked": float(result.score.nanmean()),
        "unmasked": last.get("unmasked_accuracy_mean"),
        "population": last.get("population"),
        "epochs": result.epochs,
        "bytes": result.bytes_sent,
        "seconds": round(result.seconds, 1),
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("log", type=Path, help="a line for each run is added to it")
    parser.add_argument("--datasets", default="cifar10,cifar100")
    parser.add_argument("--candidates", default=",".join(CANDIDATES))
    parser.add_argument("--data-dir")
    parser.add_argument("--clients", type=int, default=0, help="of images")
    parser.add_argument("--model", default="", help="default: that of the dataset")
    parser.add_argument("--epochs", type=int, default=0, help="per round; default: the recipe's")
    parser.add_argument("--rounds", type=int, default=0, help="default: 40 of images")
    parser.add_argument("--seed", type=int, default=101, help="none of those of the tables")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--no-verify-checksums", action="store_true", help="to try parts of data")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    began, log = time.monotonic(), given.log
    log.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    for data in data_of(given):
        federation = None
        for name in given.candidates.split(","):
            job = job_of(name, data, given)
            what = {"dataset": data.dataset, "partition": data.partition, "candidate": name}
            what |= {"seed": given.seed, "rounds": job.settings.rounds}
            left = given.seconds - (time.monotonic() - began)
            if any(what.items() <= line.items() for line in done):
                continue
            if SECONDS.get(name, OURS) > left:
                continue
            federation = federation or validation_as_test(load(data, given.seed))
            what |= line_of(job, federation)
            with log.open("a") as file:
                file.write(json.dumps(what) + "\n")
            print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
