"""Federations that `scool` has not seen: does it keep its promise, never below learning alone?

    python benchmarks/unseen.py runs/unseen.jsonl --seeds 5

Every method has the options that a user gets for such data (`scool.compare`). With `--stage tune`
validation samples stand where the test samples of real owners were, and others are drawn. A run
that is in the log is done; `--table` prints what is there.
"""

import argparse
import csv
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from unseen_federations import FEDERATIONS, Case

import scool
from scool.data.catalogue import config_like
from scool.data.subset import validation_as_test
from scool.evaluation.paired import paired_difference
from scool.run.config import default_run
from scool.run.options import with_options

AS_LOCAL = "the rate that all other methods have"
NO_GRAPH = {"kinds": "alone,body,common"}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "local": ("local", {}),
    "fedavg": ("fedavg", {}),
    "fedrep": ("fedrep", {}),
    "scool-sbm": ("scool-sbm", {}),
    "scool": ("scool", {}),
    "given rate": ("scool", {"lr": AS_LOCAL}),
    "no graph": ("scool", NO_GRAPH),
}


def federation_of(case: Case, seed: int, stage: str) -> scool.Federation:
    """Half of the samples of a real owner are for the test."""
    val = 0.3 if stage == "tune" and case.is_real else 0.0
    federation = scool.from_arrays(
        case.owners, seed=seed, task=case.task, test_fraction=0.5, val_fraction=val, **case.options
    )
    return validation_as_test(federation) if val else federation


def scores_of(result: scool.Result, case: Case) -> torch.Tensor:
    """(K,) percent that are right; of regression minus the RMSE in percent of the spread of the
    owner's targets."""
    if case.task == "classification":
        return result.score
    spread = [max(float(np.std(owner[1], axis=0).mean()), 1e-9) for owner in case.owners]
    return -100 * result.evaluate("rmse") / torch.tensor(spread, dtype=torch.float64)


def run(name: str, row: str, seed: int, stage: str, rate: float) -> dict[str, Any]:
    case = FEDERATIONS[name](seed + 1000 * (stage == "tune"))
    federation = federation_of(case, seed, stage)
    method, options = ROWS[row]
    start = default_run(method, config_like(federation)).algorithm
    usual = default_run("local", config_like(federation)).algorithm.sgd.lr
    if rate or options.get("lr") == AS_LOCAL:
        options = options | {"lr": (rate or 1.0) * usual}
    algorithm = with_options(start, options, row)
    began = time.monotonic()
    result = scool.fit(
        federation, case.model, algorithm, rounds=case.rounds, eval_every=case.rounds, seed=seed,
        device="cpu", checkpoint_every=0, verbose=False,
    )  # fmt: skip
    last = result.history[-1]
    found: dict[str, Any] = {
        "scores": [round(s, 4) for s in scores_of(result, case).tolist()],
        "ratio": int(federation.test.mask.sum()) / int(federation.train.mask.sum()),
        "lost": len(result.health.reasons),
        "seconds": round(time.monotonic() - began, 1),
    }
    if method == "scool":
        found |= {"tracks": last["tracks"], "population": last["population"]}
        found["told"] = [" learns mostly alone" in words for words in result.advice() or ()]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("log", type=Path)
    parser.add_argument("--federations", default=",".join(FEDERATIONS))
    parser.add_argument("--methods", default=",".join(ROWS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--stage", choices=("tune", "test"), default="test")
    parser.add_argument("--rate", type=float, default=0.0, help="times the default learning rate")
    parser.add_argument("--table", action="store_true", help="print gains of `scool`, run nothing")
    parser.add_argument("--csv", type=Path, help="with --table: write its numbers here, too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.log.parent.mkdir(parents=True, exist_ok=True)
    done = list(map(json.loads, given.log.read_text().splitlines())) if given.log.exists() else []
    names = given.federations.split(",")
    if given.table:
        rows = [row for name in names for row in rows_of(done, name)]
        if given.csv:
            write_csv(given.csv, rows)
        return print(markdown(rows))
    for seed in range(given.seeds):
        for name in names:
            for row in given.methods.split(","):
                what = {"federation": name, "method": row, "seed": seed, "stage": given.stage}
                what |= {"rate": given.rate}
                if any(what.items() <= line.items() for line in done):
                    continue
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    try:
                        found = run(name, row, seed, given.stage, given.rate)
                    except Exception as error:
                        found = {"failed": f"{type(error).__name__}: {error}"}
                words = sorted({str(w.message)[:150] for w in said})
                line = what | found | ({"warned": words} if words else {})
                with given.log.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(name, row, seed, found.get("failed"), found.get("seconds"), flush=True)


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    flat = [row | row.get("weights", {}) for row in rows]
    names = [n for n in dict.fromkeys(n for row in flat for n in row) if n != "weights"]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in flat:
            short = {n: round(v, 4) if isinstance(v, float) else v for n, v in row.items()}
            writer.writerow(short)


def rows_of(lines: list[dict[str, Any]], name: str) -> Iterator[dict[str, Any]]:
    """A line for each method in a federation: its gain over learning alone."""
    mine = [line for line in lines if line["federation"] == name]
    scores = {(ln["method"], ln["seed"]): ln["scores"] for ln in mine if "scores" in ln}
    is_real = FEDERATIONS[name](0).is_real
    for method in dict.fromkeys(ln["method"] for ln in mine):
        own = [ln for ln in mine if ln["method"] == method]
        seeds = [s for m, s in scores if m == method and ("local", s) in scores]
        row = {"federation": name, "method": method, "failed": sum("failed" in ln for ln in own)}
        if seeds:
            ours, alone = ([scores[m, s] for s in seeds] for m in (method, "local"))
            ratio = next(ln["ratio"] for ln in own if "ratio" in ln) if is_real else 0.0
            gain = paired_difference(ours, alone, split_ratio=ratio)
            ends = gain.over_seeds
            row |= {"seeds": len(seeds), "score": float(torch.tensor(ours).nanmean())}
            row |= {"gain": gain.mean, "low": ends and ends.low, "high": ends and ends.high}
            row |= {"owners": gain.compared, "worse": gain.share_worse}
            row["clearly"] = len(gain.clearly_worse) / max(gain.compared, 1)
            row |= _chosen(own, gain.by_client)
        yield row


def _chosen(runs: list[dict[str, Any]], gains: torch.Tensor) -> dict[str, Any]:
    tracks = [line["tracks"] for line in runs if "tracks" in line]
    if not tracks:
        return {}
    means = {kind: float(np.nanmean([t[kind] for t in tracks])) for kind in tracks[0]}
    told = torch.tensor([line["told"] for line in runs if "told" in line]).double().mean(0) > 0.5
    others = gains[~told & ~gains.isnan()]
    right = float((others >= 0).double().mean()) if len(others) else None
    return {"weights": means, "told_alone": int(told.sum()), "of_others_gain": right}


HEAD = "federation, owners, seeds, alone, scool, interval over seeds, worse off, beyond noise"
HEAD += ", told to be alone, of the others gain, rate not found, SCooL-SBM, FedAvg"


def markdown(rows: list[dict[str, Any]]) -> str:
    """A row for each federation that `scool` was tried on, gains over learning alone."""
    words = HEAD.split(", ")
    lines = ["| " + " | ".join(words) + " |", "| --- " + "| ---: " * (len(words) - 1) + "|"]
    for name in dict.fromkeys(row["federation"] for row in rows):
        by = {row["method"]: row for row in rows if row["federation"] == name and "gain" in row}
        if "scool" in by and "local" in by:
            lines.append("| " + " | ".join(_cells(name, by)) + " |")
    return "\n".join(lines)


def _cells(name: str, by: dict[str, dict[str, Any]]) -> list[str]:
    ours, low, high = by["scool"], by["scool"]["low"], by["scool"]["high"]
    shown = ("scool", "given rate", "scool-sbm", "fedavg")
    gains = [f"{by[m]['gain']:+.1f}" if m in by else "–" for m in shown]
    share = ours["of_others_gain"]
    return [
        name.replace("_", " "),
        *(str(ours["owners"]), str(ours["seeds"]), f"{by['local']['score']:.1f}", gains[0]),
        "–" if low is None else f"{low:+.1f} to {high:+.1f}",
        f"{ours['worse']:.0%}",
        "–" if low is None else f"{ours['clearly']:.0%}",
        str(ours["told_alone"]),
        "–" if share is None else f"{share:.0%}",
        *gains[1:],
    ]


if __name__ == "__main__":
    main()
