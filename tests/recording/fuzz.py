"""Damage one file of a run folder, run one command on it, and judge what a person would see.

Three outcomes are allowed. *right*: the command gives what it gives on the whole folder, perhaps
with a sentence about the damage. *said*: exit code 2, and words that name the file or its folder.
Anything else is *wrong*: another output without a word, a stack trace, a hang.

    PYTHONPATH=tests python tests/recording/fuzz.py --cases 2000 --seed 0 --out benchmarks/DATE-fuzz
"""

import argparse
import contextlib
import io
import json
import platform
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import scool
from recording.harms import HARMS, OFTEN
from scool.cli.main import run_command
from scool.recording.folder import RunFolder
from scool.recording.writer import RunWriter

SMALL = "--dataset synthetic --clients 6 --groups 2 --model linear --device cpu --quiet".split()
RUN = ["--rounds", "4", "--checkpoint-every", "2", "--sparsify-round", "1", *SMALL]
PATIENCE = 30  # seconds that a command may take


@dataclass(frozen=True)
class Case:
    """What was done, and what came of it."""

    target: str
    file: str
    harm: str
    command: str
    outcome: str = ""
    words: str = ""


# ---------------------------------------------------------------------- whole folders


def make_folders(place: Path) -> None:
    """`a` and `b`, runs that differ in the seed; `c`, the run of `a` after a kill in its third
    round; `d`, a comparison; `e`, a run of two that go on together; `models`, exported."""
    for name, seed in (("a", "0"), ("b", "1")):
        _must(["run", "scool-sbm", "--seed", seed, "--out", str(place / name), *RUN])
    shutil.copytree(place / "a", place / "c")
    _kill(place / "c")
    words = ["compare", "--methods", "local,scool-sbm", "--rounds", "2", "--no-figures", *SMALL]
    _must([*words, "--out", str(place / "d")])
    _must(["export", str(place / "a"), "--out", str(place / "models")])
    for name in EARLIER["c"]:
        _lose(place / "c", place / name)


def _kill(run: Path) -> None:
    """The folder as a kill leaves it: the third round is recorded, the checkpoint is of two."""
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    times = (run / "timing.jsonl").read_bytes().splitlines(keepends=True)
    graph = run / "graphs" / "000002.safetensors"
    kept = graph.read_bytes()
    RunWriter.take_up(RunFolder(run), 2, status="running", rounds_done=0, result=None)
    for name, text in (("metrics.jsonl", lines[2]), ("timing.jsonl", times[2])):
        with (run / name).open("ab") as file:
            file.write(text)
    graph.write_bytes(kept)


EARLIER = {"c": [f"c without {n}" for n in ("metrics.jsonl", "timing.jsonl", "000002.safetensors")]}
"""Folders that the same kill could have left: what follows on the last checkpoint is not listed,
and nobody can miss it."""


def _lose(run: Path, other: Path) -> None:
    """A copy without what the file in its name says of the third round."""
    shutil.copytree(run, other)
    name = other.name.rpartition(" ")[2]
    if name.endswith(".jsonl"):
        lines = (other / name).read_bytes().splitlines(keepends=True)
        (other / name).write_bytes(b"".join(lines[:2]))
    else:
        (other / "graphs" / name).unlink()


def _must(words: list[str]) -> None:
    code, _, err = run_quietly(words)
    assert code == 0, err


# ---------------------------------------------------------------------- commands

Commands = dict[str, Callable[[Path, Path], list[str]]]
PLOTS = ("accuracy", "graph", "graph-error", "budget", "partition", "blocks")
COMMANDS: Commands = {
    "ls": lambda run, out: ["ls", str(run.parent), "--json"],
    "report": lambda run, out: ["report", str(run), "--out", str(out)],
    **{
        f"plot {kind}": lambda run, out, kind=kind: [
            *("plot", kind, str(run), "--out", str(out / "figure.png"))
        ]
        for kind in PLOTS
    },
    "export": lambda run, out: ["export", str(run), "--out", str(out / "export")],
    "diff": lambda run, out: ["diff", str(run), str(run), "--json"],
    "watch": lambda run, out: ["watch", str(run), "--once"],
    "verify": lambda run, out: ["verify", str(run)],
    "resume": lambda run, out: ["resume", str(run), "--json", "--quiet"],
    "rerun": lambda run, out: ["rerun", str(run), "--out", str(out / "again"), "--json", "--quiet"],
}
OF_TARGET = {
    "a": [*COMMANDS, "load_model"],
    "c": ["resume", "resume", "resume", "ls", "report", "watch", "verify", "export", "load_model"],
    "d": ["ls", "report", "plot accuracy", "verify", "resume"],
    "models": ["load_model", "verify"],
}


def run_quietly(words: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command, in this process."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), heard() as err:
        code = run_command(words)
    return code, out.getvalue(), err.getvalue()


@contextlib.contextmanager
def heard() -> Iterator[io.StringIO]:
    """What goes to stderr, with all warnings as the command line words them, whatever a test runner
    does with warnings."""
    err = io.StringIO()

    def show(message: Warning | str, category: type[Warning], *_: object) -> None:
        err.write(f"{category.__name__}: {message}\n")

    with warnings.catch_warnings(), contextlib.redirect_stderr(err):
        warnings.simplefilter("always")
        warnings.showwarning = show
        yield err


def _load_models(run: Path) -> tuple[int, str, str]:
    """All models of a folder through Python, as a text of their numbers."""
    with heard() as err:
        try:
            found = [scool.load_model(run, client).state_dict() for client in range(6)]
        except scool.ScoolError as error:
            return 2, "", str(error)
    text = str([{n: t.tolist() for n, t in model.items()} for model in found])
    return (2 if "DamageWarning" in err.getvalue() else 0), text, err.getvalue()


def observe(target: Path, command: str, out: Path) -> tuple[int, dict[str, Any], str]:
    """What a command gives: exit code, all output that counts, and its words on stderr."""
    out.mkdir(parents=True)
    if command == "load_model":
        code, text, err = _load_models(target)
    else:
        code, text, err = run_quietly(COMMANDS[command](target, out))
    found: dict[str, Any] = {"stdout": _without_times(text, target, out)}
    for file in sorted(path for path in out.rglob("*") if path.is_file()):
        if command != "rerun":
            found[str(file.relative_to(out))] = file.read_bytes()
    if command in ("resume", "rerun"):
        made = target if command == "resume" else out / "again"
        results = [*made.glob("metrics.jsonl"), *made.glob("graphs/*")]
        results += sorted(made.glob("checkpoint-*"))[-1:]  # an older one is only there in case
        for file in results:
            found[str(file.relative_to(made))] = _bytes(file)
    return code, found, err


def _without_times(text: str, target: Path, out: Path) -> str:
    text = text.replace(str(out), "OUT").replace(str(target.parent), "PLACE")
    lines = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
            lines.append(json.dumps({n: v for n, v in row.items() if n != "seconds"}))
        except (ValueError, AttributeError):
            lines.append(line)
    return "\n".join(lines)


# ---------------------------------------------------------------------- judging


class Hung(Exception):
    """A command took too long."""


@contextlib.contextmanager
def patience(seconds: int) -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Fuzz:
    """Whole folders, what every command says about them, and the judge."""

    def __init__(self, place: Path) -> None:
        self.place = place
        make_folders(place / "whole")
        self._expected: dict[tuple[str, str], dict[str, Any]] = {}
        self._count = 0

    def _copy(self, target: str) -> tuple[Path, Path]:
        self._count += 1
        place = self.place / f"case-{self._count}"
        name = target.partition(" ")[0]  # the same in what commands print
        shutil.copytree(self.place / "whole" / target, place / name)
        return place / name, place / "out"

    def expected(self, target: str, command: str) -> dict[str, Any]:
        if (target, command) not in self._expected:
            folder, out = self._copy(target)
            code, found, err = observe(folder, command, out)
            assert code == 0, (target, command, err)
            self._expected[target, command] = found
            shutil.rmtree(folder.parent)
        return self._expected[target, command]

    def _is_of_earlier(self, case: Case, found: dict[str, Any]) -> bool:
        others = [n for n in EARLIER.get(case.target, ()) if n.endswith(Path(case.file).name)]
        return any(found == self.expected(name, case.command) for name in others)

    def draw(self, rng: random.Random) -> Case:
        """A target, a file in it, a harm that fits, and a command."""
        target = rng.choice(["a", "a", "a", "c", "c", "d", "models"])
        whole = self.place / "whole" / target
        files = sorted(str(p.relative_to(whole)) for p in whole.rglob("*") if p.is_file())
        files = [name for name in files if not name.endswith((".graphml", ".csv", ".png"))]
        graphs = [name for name in files if "graphs/" in name]
        file = rng.choice([n for n in files if n not in graphs] + graphs[-1:] + graphs[:1])
        harm = rng.choice([*HARMS, *OFTEN, *OFTEN])
        if harm in ("cut at a line", "drop a line") and not file.endswith((".jsonl", ".json")):
            harm = "cut off"
        return Case(target, file, harm, rng.choice(OF_TARGET[target]))

    def judge(self, case: Case, rng: random.Random) -> Case:
        """Do what a case says; with its outcome."""
        expected = self.expected(case.target, case.command)
        folder, out = self._copy(case.target)
        donor = self._donor(case)
        HARMS[case.harm](folder / case.file, donor, rng)
        try:
            with patience(PATIENCE):
                code, found, err = observe(folder, case.command, out)
            differs = _differences(found, expected)
            if differs and self._is_of_earlier(case, found):
                differs = []
            said = err + found["stdout"] if case.command == "verify" else err
            outcome, words = _outcome(case, code, differs, said)
        except Hung:
            outcome, words = "wrong", "hung"
        except Exception:
            outcome, words = "wrong", traceback.format_exc()[-1500:]
        finally:
            shutil.rmtree(folder.parent)
        words = words.replace(str(folder.parent), "").replace(str(self.place), "")
        return Case(**{**asdict(case), "outcome": outcome, "words": words[:1500]})

    def _donor(self, case: Case) -> Path:
        """The same file of another run, or the nearest to it."""
        whole = self.place / "whole"
        name = case.file.split("/", 1)[-1] if case.target == "d" else case.file
        other = whole / "b" / name
        if case.target == "models":
            other = whole / "b" / "checkpoint-000004.safetensors"
        return other if other.is_file() else whole / "b" / "run.json"


def _outcome(case: Case, code: int, differs: list[str], words: str) -> tuple[str, str]:
    if "Traceback" in words:
        return "wrong", words
    if code == 0 and not differs:
        return "right", words
    is_file_named = Path(case.file).name in words or Path(case.file).stem in words
    if code == 2 and (is_file_named or re.search(rf"/{case.target}\b", words)):
        return "said", words
    if is_file_named and (case.command == "verify" or differs == [case.file]):
        return "said", words  # a record that is lost for good: the rest is as it should be
    return "wrong", f"exit code {code}: {words}; differs: {differs}"


def _differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    names = sorted({*found, *expected})
    return [name for name in names if found.get(name) != expected.get(name)]


def run_cases(place: Path, cases: int, seed: int) -> Iterator[Case]:
    """So many random cases."""
    fuzz, rng = Fuzz(place), random.Random(seed)
    for _ in range(cases):
        yield fuzz.judge(fuzz.draw(rng), rng)


# ---------------------------------------------------------------------- while a run goes on


class Vandal:
    """A recorder that damages a file after a round."""

    def __init__(self, folder: Path, file: str, harm: str, after: int, seed: int) -> None:
        self.path, self.harm, self.after = folder / file, harm, after
        self.rng = random.Random(seed)

    def start(self, header: Any, first_round: int) -> None: ...

    def round(self, row: Any, info: Any) -> None:
        if row["round"] == self.after and self.path.is_file():
            HARMS[self.harm](self.path, self.path, self.rng)

    def end(self, result: Any) -> None: ...


def judge_running(place: Path, file: str, harm: str, after: int, seed: int) -> Case:
    """Damage a file while a run writes. Allowed: the records are whole in the end and those of an
    undisturbed run; or the run, or `scool verify` after it, names the file."""
    case = Case("running", file, harm, f"run, after round {after + 1}")
    federation = scool.synthetic(num_clients=6, groups=2, seed=0)
    method = scool.SCooL(prior=scool.SBM(num_blocks=2), sparsify_round=1)

    def go(out: Path, *recorders: Any) -> None:
        scool.fit(
            federation, "linear", method, rounds=4, checkpoint_every=2, out=out, recorders=recorders
        )

    whole, out = place / "undisturbed", place / f"vandal-{file.replace('/', '-')}-{harm}-{after}"
    if not whole.exists():
        go(whole)
    try:
        with heard() as err, patience(PATIENCE):
            go(out, Vandal(out, file, harm, after, seed))
    except scool.ScoolError as error:
        return Case(**{**asdict(case), "outcome": "said", "words": str(error)})
    except Exception:
        return Case(**{**asdict(case), "outcome": "wrong", "words": traceback.format_exc()[-1500:]})
    code, text, _ = run_quietly(["verify", str(out)])
    results = ("metrics.jsonl", "clients.safetensors", "graphs/*", "checkpoint-*")
    found, expected = (
        {str(f.relative_to(run)): _bytes(f) for name in results for f in run.glob(name)}
        for run in (out, whole)
    )
    if code == 0 and found == expected:
        outcome, words = "right", err.getvalue()
    elif code == 2 and Path(file).name in text:
        outcome, words = "said", text
    else:
        outcome, words = "wrong", f"exit code {code}: {text}; {_differences(found, expected)}"
    shutil.rmtree(out)
    return Case(**{**asdict(case), "outcome": outcome, "words": words})


def _bytes(path: Path) -> bytes:
    if not path.is_file() or path.is_symlink() or path.stat().st_size > 2**24:
        return b"not a file of ours"
    return path.read_bytes()


RUNNING_FILES = (
    "metrics.jsonl",
    "timing.jsonl",
    "run.json",
    "manifest.json",
    "clients.safetensors",
    "graphs/000000.safetensors",
    "graphs/000001.safetensors",
    "checkpoint-000002.safetensors",
)
RUNNING_HARMS = ("delete", "flip a bit", "cut off", "append", "pipe", "folder")


def run_running(place: Path, cases: int, seed: int) -> Iterator[Case]:
    """So many files damaged under a run."""
    rng = random.Random(seed)
    for number in range(cases):
        file, harm = rng.choice(RUNNING_FILES), rng.choice(RUNNING_HARMS)
        yield judge_running(place / str(number % 50), file, harm, rng.randrange(4), number)


# ---------------------------------------------------------------------- the whole list


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--running", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    counts: Counter[tuple[str, str]] = Counter()
    wrong: list[Case] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        for cases in (
            run_cases(Path(place) / "still", chosen.cases, chosen.seed),
            run_running(Path(place) / "running", chosen.running, chosen.seed),
        ):
            for case in cases:
                counts[case.command.partition(",")[0], case.outcome] += 1
                if case.outcome == "wrong":
                    wrong.append(case)
                    print(json.dumps(asdict(case)), flush=True)
    table = {
        command: {o: counts[command, o] for o in ("right", "said", "wrong")}
        for command in sorted({command for command, _ in counts})
    }
    total = {o: sum(n for (_, found), n in counts.items() if found == o) for o in table["ls"]}
    about = {
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "scool": scool.__version__,
        "seconds": round(time.monotonic() - began),
        "total": total,
        "by_command": table,
        "wrong": [asdict(case) for case in wrong],
    }
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "fuzz.json").write_text(json.dumps(about, indent=2) + "\n")
    print(json.dumps(total))


if __name__ == "__main__":
    main()
