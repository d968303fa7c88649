"""Kill runs of several ranks at random moments, resume them with as many, and compare the bytes.

    python tests/engine/kill_ranks.py --trials 21 --out benchmarks/DATE-records

A trial kills one follower, the parent or all processes at once, in turn; every third trial kills
the resumed run, too. In these runs clients move between ranks: once with SCooL, several times with
FedFomo, whose graph keeps changing. Linux only.
"""

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import scool
from scool.engine.ranks.placement import Placement
from scool.errors import RunError
from scool.recording.checkpoint import HOLDER
from scool.recording.disk import LOCK
from scool.recording.folder import METRICS, TIMING, RunFolder
from scool.recording.verify import verify_run
from scool.run.identity import source_commit

ROUNDS = 40
OPTIONS = (
    "--dataset synthetic --clients 24 --groups 4 --model linear --device cpu "
    "--checkpoint-every 3 --eval-every 4 --quiet --json"
).split()
METHODS = {"scool-sbm": ["--sparsify-round", "3", "--fraction", "0.2"], "fedfomo": []}
SETTINGS = ((2, "scool-sbm"), (3, "fedfomo"), (3, "scool-sbm"), (2, "fedfomo"))  # in turn
KINDS = ("follower", "parent", "all")
PATIENCE = 60.0  # seconds that the others may take to end after one was killed
BYTES = (METRICS, "clients.safetensors", "graphs/*", "checkpoint-*", "shard-*")
TOKEN = "SCOOL_KILL_TRIAL"  # in the environment of all processes of a trial


@dataclass
class Kill:
    """When one or more processes of a run were killed, and what was left."""

    kind: str
    round: int  # rounds recorded when the kill was due; 0: right after the start
    milliseconds: float  # waited from then on
    recorded: int = 0  # rounds recorded after the kill
    saved: int = 0  # rounds of the newest whole checkpoint
    moved: bool = False  # whether the clients are not where they began, in that checkpoint
    seconds: float = 0.0  # until the others had ended
    missed: bool = False  # the run was over before


@dataclass
class Trial:
    """One run."""

    number: int
    ranks: int
    method: str
    kills: list[Kill] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def words(self) -> str:
        kills = "; ".join(
            f"{kill.kind} killed in round {kill.recorded + 1}, round {kill.saved} is saved"
            + (" (clients moved)" if kill.moved else "")
            for kill in self.kills
            if not kill.missed
        )
        outcome = "; ".join(self.problems) or "identical"
        return f"trial {self.number}: {self.method}, {self.ranks} ranks, {kills}: {outcome}"


def run_words(method: str, rounds: int = ROUNDS) -> list[str]:
    """A run in which clients move."""
    return ["run", method, *METHODS[method], *OPTIONS, "--rounds", str(rounds)]


# ---------------------------------------------------------------------- processes


def start(token: str, *words: object) -> subprocess.Popen[bytes]:
    """The command line, with a mark that its children inherit."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "SCOOL_RANK_TIMEOUT": "20", TOKEN: token}
    return subprocess.Popen(
        [sys.executable, "-m", "scool", *map(str, words)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def marked(token: str) -> dict[int, int]:
    """The living processes of a trial, orphans included, and the rank of each."""
    found: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended, or is somebody else's
            continue
        if f"{TOKEN}={token}".encode() in words:
            ranks = [int(word[5:]) for word in words if word.startswith(b"RANK=")]
            found[int(folder.name)] = ranks[0] if ranks else 0
    return found


def strike(run: subprocess.Popen[bytes], token: str, kind: str, rng: random.Random) -> None:
    """Kill one follower, the parent, or all. A follower must have been started."""
    processes = marked(token)
    while kind == "follower" and max(processes.values(), default=0) == 0 and run.poll() is None:
        time.sleep(0.002)
        processes = marked(token)
    if kind == "all":
        victims = rng.sample(sorted(processes), len(processes))
    elif kind == "follower":
        followers = sorted(pid for pid, rank in processes.items() if rank > 0)
        victims = [rng.choice(followers)] if followers else []
    else:
        victims = [run.pid]
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def wait_for_the_end(token: str) -> list[int]:
    """Wait until no process of a trial is left; those that would not end are killed."""
    until = time.monotonic() + PATIENCE
    while (left := marked(token)) and time.monotonic() < until:
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return sorted(left)


def recorded(folder: Path) -> int:
    """How many rounds a run has recorded."""
    try:
        return (folder / METRICS).read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


# ---------------------------------------------------------------------- what a run leaves


def contents(folder: Path) -> dict[str, bytes]:
    """All files that must be the same to the byte: everything but times."""
    files = [file for name in BYTES for file in folder.glob(name)]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def differences(folder: Path, unbroken: Path) -> list[str]:
    """What is not as in the unbroken run, and what should not be there."""
    mine, other = contents(folder), contents(unbroken)
    names = sorted(name for name in mine | other if mine.get(name) != other.get(name))
    problems = [f"{len(names)} files differ: {', '.join(names[:4])}"] if names else []
    problems += [f"{file.name} is left" for file in folder.rglob("*.tmp")]
    problems += [f"{LOCK} is left"] if (folder / LOCK).exists() else []
    bad = [f.name for f in verify_run(folder).findings if f.state != "whole"]
    problems += [f"not whole: {', '.join(bad)}"] if bad else []
    theta, expected = theta_of(folder), theta_of(unbroken)
    same = theta.keys() == expected.keys() and all(
        torch.equal(theta[name], tensor) for name, tensor in expected.items()
    )
    return problems if same else [*problems, "the models differ"]


def theta_of(folder: Path) -> dict[str, torch.Tensor]:
    """The models in the newest checkpoint."""
    checkpoint, _ = RunFolder.open(folder).last_checkpoint()
    assert checkpoint is not None
    return {name: t for name, t in checkpoint.tensors.items() if name.startswith("theta/")}


def saved_state(folder: Path) -> tuple[int, bool]:
    """The rounds of the newest whole checkpoint, and whether clients have moved before it."""
    try:
        checkpoint, _ = RunFolder(folder).last_checkpoint()
    except RunError:
        return 0, False
    return (checkpoint.rounds, has_moved(checkpoint.tensors)) if checkpoint else (0, False)


def has_moved(tensors: dict[str, torch.Tensor]) -> bool:
    """Whether clients are on other ranks than those where they began."""
    holder = tensors[HOLDER]
    began = Placement.even(len(holder), int(holder.max()) + 1).holder
    return int(tensors["shards/moved"]) >= 0 and not torch.equal(holder, began)


# ---------------------------------------------------------------------- one trial


def finish(run: subprocess.Popen[bytes], trial: Trial) -> None:
    """Let a run end by itself."""
    try:
        errors = run.communicate(timeout=300)[1].decode()
    except subprocess.TimeoutExpired:
        run.kill()
        trial.problems.append("the run hangs")
        return
    if run.returncode:
        trial.problems.append(f"exit code {run.returncode}: {errors[-600:]}")


def moment(kind: str, before: int | None, rng: random.Random) -> Kill:
    """When to kill: at any time in a round. A run that goes on after `before` rounds is killed
    while it starts, or soon after, as often as later."""
    last = ROUNDS - 6
    if before is not None and (before >= last or rng.random() < 0.5):
        return Kill(kind, 0, round(rng.uniform(0, 4000), 1))
    return Kill(kind, rng.randint((before or 0) + 1, last), round(rng.uniform(0, 80), 1))


def kill(
    run: subprocess.Popen[bytes], folder: Path, trial: Trial, token: str, rng: random.Random
) -> None:
    """Wait for a random moment, kill, and see that nobody is left over."""
    kill = trial.kills[-1]
    while recorded(folder) < kill.round and run.poll() is None:
        time.sleep(0.002)
    time.sleep(kill.milliseconds / 1000)
    strike(run, token, kill.kind, rng)
    began = time.monotonic()
    if left := wait_for_the_end(token):
        trial.problems.append(f"{len(left)} processes were left over")
    kill.seconds = round(time.monotonic() - began, 2)
    errors = run.communicate()[1].decode()
    kill.missed = run.returncode == 0
    if kill.missed and len(trial.kills) == 1:
        trial.problems.append("the run was over before the kill")
    if "Traceback" in errors:
        trial.problems.append(f"a stack trace: {errors[-600:]}")
    kill.recorded = recorded(folder)
    kill.saved, kill.moved = saved_state(folder)


def run_trial(trial: Trial, unbroken: Path, folder: Path, kinds: list[str], seed: int) -> None:
    """Run, kill and resume, kill and resume; then compare."""
    rng = random.Random(f"{seed}/{trial.number}")
    words: list[object] = [*run_words(trial.method), "--out", folder]
    for n, kind in enumerate(kinds):
        token = f"{os.getpid()}-{trial.number}-{n}"
        run = start(token, *words, "--ranks", trial.ranks)
        trial.kills.append(moment(kind, recorded(folder) if n else None, rng))
        kill(run, folder, trial, token, rng)
        words = ["resume", folder, "--quiet", "--json"]
    token = f"{os.getpid()}-{trial.number}-end"
    finish(start(token, *words, "--ranks", trial.ranks), trial)
    if left := wait_for_the_end(token):
        trial.problems.append(f"{len(left)} processes were left over at the end")
    if not trial.problems:
        trial.problems += differences(folder, unbroken)


def unbroken_run(folder: Path, ranks: int, method: str) -> list[int]:
    """A run that nobody disturbs; after which rounds clients moved in it."""
    run = start("unbroken", *run_words(method), "--out", folder, "--ranks", ranks)
    errors = run.communicate(timeout=300)[1].decode()
    assert run.returncode == 0, errors
    assert saved_state(folder) == (ROUNDS, True), "no client moves: nothing would be tested"
    rows = RunFolder(folder).rows(TIMING)  # what travels is counted in the round that follows
    return [row["round"] for row in rows if "move" in row["rank_traffic"]]


def summary(trials: list[Trial], command: list[str], moves: dict[str, list[int]]) -> dict[str, Any]:
    """What is kept of all."""
    good = [trial for trial in trials if not trial.problems]
    kills = [kill for trial in trials for kill in trial.kills if not kill.missed]
    return {
        "what": "runs of several ranks killed with SIGKILL and resumed with as many ranks: the "
        "bytes of metrics, graphs, checkpoints and their parts against an unbroken run",
        "date": time.strftime("%Y-%m-%d"),
        "command": command,
        "runs": [["scool", *run_words(method)] for method in METHODS],
        "versions": {
            "scool": scool.__version__,
            "commit": source_commit(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "system": platform.platform(),
        },
        "trials": len(trials),
        "identical": len(good),
        "identical_by_kind": dict(Counter(trial.kills[0].kind for trial in good)),
        "kills": len(kills),
        "kills_by_kind": dict(Counter(kill.kind for kill in kills)),
        "kills_after_a_move": sum(kill.moved for kill in kills),
        "longest_end_seconds": max(kill.seconds for kill in kills),
        "clients_move_after_rounds": moves,
        "each": [asdict(trial) for trial in trials],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=21)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for kill-ranks.json")
    options = parser.parse_args()
    source_commit()  # remembered: the files may change while this runs
    trials: list[Trial] = []
    moves: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory() as place:
        for number in range(options.trials):
            kind, (ranks, method) = KINDS[number % 3], SETTINGS[number // 3 % len(SETTINGS)]
            name = f"{method} with {ranks} ranks"
            unbroken = Path(place, name.replace(" ", "-"))
            if name not in moves:
                moves[name] = unbroken_run(unbroken, ranks, method)
            again = [KINDS[number // 3 % 3]] if (number // 3 + number) % 3 == 0 else []
            trial = Trial(number, ranks, method)
            run_trial(trial, unbroken, Path(place, f"trial-{number}"), [kind, *again], options.seed)
            trials.append(trial)
            print(trial.words, flush=True)
    result = summary(trials, ["python", *sys.argv], moves)
    print(json.dumps({name: value for name, value in result.items() if name != "each"}, indent=2))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(result, indent=2) + "\n"
        (options.out / "kill-ranks.json").write_text(text)
    return 0 if result["identical"] == len(trials) else 1


if __name__ == "__main__":
    sys.exit(main())
