"""Which kinds of cooperation should `scool` have on images? Judged on validation data alone.

    python benchmarks/kinds.py runs/kinds.jsonl --datasets cifar10 --data-dir data --seconds 540

Candidates of the recommended method, and the two methods that it has to reach, each on the paper's
partitions. A fifth of the training samples stands where the test samples were, which are not in the
federation; `scool` sets its own aside from the rest. So nobody sees what it is judged by, unlike in
`scool tune`. The next run is begun if it fits into what is left; a run that is in the file is done.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from scool.data.catalogue import DataConfig, load
from scool.data.subset import validation_as_test
from scool.run.config import default_run
from scool.run.options import with_options
from scool.sweep.runner import Job

DRAWN = "alone,body,graph,common,drawn"
CANDIDATES: dict[str, tuple[str, dict[str, Any]]] = {
    "scool-sbm": ("scool-sbm", {}),
    "scool-drawn": ("scool-drawn", {}),
    "scool": ("scool", {}),
    "with drawn": ("scool", {"kinds": DRAWN}),
    "with drawn, average 0.9": ("scool", {"kinds": DRAWN, "model_average": 0.9}),
    "average 0.9": ("scool", {"model_average": 0.9}),
}
SECONDS = {"scool-sbm": 30, "scool-drawn": 30}
"""A guess for 40 rounds on one H200; others: OURS."""
OURS = 200


def job_of(name: str, data: DataConfig, rounds: int, seed: int, device: str) -> Job:
    method, options = CANDIDATES[name]
    config = with_options(default_run(method, data), options, name)
    settings = replace(
        config.settings,
        rounds=rounds,
        seed=seed,
        device=device,
        eval_every=rounds,
        checkpoint_every=0,
    )
    return Job(name, config.algorithm, settings.model, settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("log", type=Path, help="a line for each run is added to it")
    parser.add_argument("--datasets", default="cifar10,cifar100")
    parser.add_argument("--data-dir")
    parser.add_argument("--clients", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=101, help="none of those of the tables")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--no-verify-checksums", action="store_true", help="to try parts of data")
    given = parser.parse_args()
    began, log = time.monotonic(), given.log
    log.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    for dataset in given.datasets.split(","):
        for partition in ("noniid", "sbm"):
            data = DataConfig(
                dataset=dataset,
                partition=partition,
                data_dir=given.data_dir,
                clients=given.clients,
                val_fraction=0.2,
                verify_checksums=not given.no_verify_checksums,
            )
            federation = None
            for name in CANDIDATES:
                what = {"dataset": dataset, "partition": partition, "candidate": name}
                what |= {"seed": given.seed, "rounds": given.rounds}
                left = given.seconds - (time.monotonic() - began)
                if any(what.items() <= line.items() for line in done):
                    continue
                if SECONDS.get(name, OURS) > left:
                    continue
                federation = federation or validation_as_test(load(data, given.seed))
                job = job_of(name, data, given.rounds, given.seed, given.device)
                result = job.run(federation)
                what |= {
                    "masked": float(result.score.nanmean()),
                    "unmasked": result.history[-1].get("unmasked_accuracy_mean"),
                    "population": result.history[-1].get("population"),
                    "epochs": result.epochs,
                    "bytes": result.bytes_sent,
                    "seconds": round(result.seconds, 1),
                }
                with log.open("a") as file:
                    file.write(json.dumps(what) + "\n")
                print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
