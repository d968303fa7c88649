"""One run: rounds of one method on one federation, recorded, resumable."""

import hashlib
import json
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scool.contracts import Recorder
from scool.data.federation import Federation
from scool.engines.local import LocalEngine
from scool.engines.memory import fitting_threads
from scool.errors import QuarantineError, RunError, require
from scool.evaluation.accuracy import evaluate
from scool.experiment.options import as_dict
from scool.experiment.result import Result
from scool.experiment.rows import describe_round
from scool.models import ModelConfig, initial_params, parameters_of
from scool.recording.checkpoint import flatten, unflatten
from scool.recording.folder import RunFolder
from scool.types import Info, Params

Model = nn.Module | str | ModelConfig | Callable[[], nn.Module]


class Interrupted(RunError):
    """A person stopped the run; its state was saved."""


def prepare_model(model: Model, federation: Federation, seed: int) -> tuple[nn.Module, Params]:
    """A module and the common first parameters theta^0."""
    if isinstance(model, str):
        model = ModelConfig(model=model)
    if isinstance(model, ModelConfig):
        model = model.builder(federation.input_shape, federation.num_outputs)
    if isinstance(model, nn.Module):  # a person's own: its present parameters are theta^0
        return model, parameters_of(model)
    return initial_params(model, seed)


def fit(
    federation: Federation,
    model: Model,
    algorithm: Any,
    *,
    rounds: int = 30,
    seed: int = 0,
    device: str = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    eval_every: int = 1,
    checkpoint_every: int = 10,
    client_chunk: int = 0,
    strict: bool = False,
    recorders: Sequence[Recorder] = (),
    method: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> Result:
    """Train personal models on a federation with one method.

    Args:
        federation: the clients' data.
        model: `linear`, `mlp`, `cnn2`, `cnn4`, a `ModelConfig`, a function that builds an
            `nn.Module`, or a module whose present parameters every client starts from.
        algorithm: e.g. `SCooL(prior=SBM())`, `LocalOnly()`.
        rounds: communication rounds.
        out: a folder for the records; nothing is written where it is None.
        resume: continue the run in `out` to bit-identical results (on a CPU).
        eval_every: rounds between evaluations; the last round is always evaluated.
        checkpoint_every: rounds between checkpoints.
        client_chunk: clients trained side by side; 0 chooses by free memory. No influence on
            results.
        strict: stop when a client's numbers stop being finite, instead of leaving it out.

    Returns:
        the models, their scores, the graph of every round, and what it cost.
    """
    require(rounds >= 1, "rounds", rounds, "give at least 1")
    require(eval_every >= 1, "eval_every", eval_every, "give at least 1")
    require(checkpoint_every >= 1, "checkpoint_every", checkpoint_every, "give at least 1")
    require(client_chunk >= 0, "client_chunk", client_chunk, "give 0 (automatic) or more")
    module, theta0 = prepare_model(model, federation, seed)
    engine = LocalEngine(
        federation, module, seed=seed, device=device, client_chunk=client_chunk, strict=strict
    )
    method = method or type(algorithm).__name__
    header = _header(method, rounds, seed, engine, config)
    header["identity"] = _identity(algorithm, federation, seed, theta0)
    folder, progress = _open(out, resume, header, engine, algorithm, theta0)
    for recorder in recorders:
        recorder.start(header, progress.done)
    try:
        with fitting_threads(module, federation.num_clients):
            while progress.done < rounds:
                t = progress.done
                is_last = t + 1 == rounds
                began = time.perf_counter()
                state, info = algorithm.step(engine, progress.state, t)
                _check_anybody(engine)
                is_evaluated = is_last or (t + 1) % eval_every == 0
                scores = evaluate(engine, state.theta, federation) if is_evaluated else None
                row = describe_round(t, info, scores, engine, federation)
                progress.finish_round(state, row, info, engine, time.perf_counter() - began)
                for recorder in recorders:
                    recorder.round(row, info)
                if is_last or progress.done % checkpoint_every == 0:
                    progress.save()
    except KeyboardInterrupt:
        if folder is None:
            raise
        progress.save()
        folder.update_header(status="interrupted", rounds_done=progress.done)
        raise Interrupted(
            f"stopped after round {progress.done} of {rounds} of {method}; the state is saved, "
            f"`scool resume {folder.path}` goes on"
        ) from None
    result = Result(
        method=method,
        seed=seed,
        rounds=rounds,
        seconds=progress.seconds,
        theta={name: t.cpu() for name, t in progress.state.theta.items()},
        score=_scores(progress.history[-1]),
        history=progress.history,
        graphs=progress.graphs,
        federation=federation,
        module=module,
        run_dir=folder.path if folder else None,
    )
    if folder:
        folder.update_header(status="finished", rounds_done=rounds, result=result.summary())
    for recorder in recorders:
        recorder.end(result)
    return result


@dataclass
class _Progress:
    """How far a run has come. What is here was computed to the end of round `done`, always."""

    state: Any
    active: Tensor  # (K,) who was not in quarantine after that round
    folder: RunFolder | None
    done: int = 0
    saved: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    graphs: dict[int, Tensor] = field(default_factory=dict)
    seconds: float = 0.0

    def finish_round(
        self, state: Any, row: dict[str, Any], info: Info, engine: LocalEngine, seconds: float
    ) -> None:
        graph = info["graph"]
        assert isinstance(graph, Tensor)
        if self.folder:
            self.folder.write_graph(self.done, graph)
            self.folder.append("timing.jsonl", {"round": self.done, "seconds": seconds})
            self.folder.append("metrics.jsonl", row)
        self.history.append(row)
        self.graphs[self.done] = graph.cpu().float()
        self.seconds += seconds
        self.state, self.active, self.done = state, engine.active, self.done + 1

    def save(self) -> None:
        """A checkpoint of the last finished round, once."""
        if self.folder and self.done > self.saved:
            self.folder.write_checkpoint(
                self.done, flatten(self.state) | {"engine/active": self.active}
            )
            self.saved = self.done


def _reasons(folder: RunFolder, done: int, active: Tensor) -> dict[int, str]:
    """Why each client in quarantine is there, as the row of the last saved round tells."""
    row = next((row for row in folder.rows() if row["round"] == done - 1), {"quarantined": {}})
    out = (~active).nonzero()[:, 0].tolist()
    return {client: row["quarantined"].get(str(client), "before") for client in out}


def _check_anybody(engine: LocalEngine) -> None:
    """Stop when there is nobody left to learn."""
    if not bool(engine.active.any()):
        why = ", ".join(sorted(set(engine.quarantined.values())))
        raise QuarantineError(
            f"all {engine.num_clients} clients are in quarantine (non-finite {why}): nobody is "
            "left to learn. Lower lr, or clean the data"
        )


def _scores(row: Mapping[str, Any]) -> Tensor:
    values = [torch.nan if s is None else s for s in row["scores"]]
    return torch.tensor(values, dtype=torch.float64)


def _open(
    out: str | Path | None,
    resume: bool,
    header: Mapping[str, Any],
    engine: LocalEngine,
    algorithm: Any,
    theta0: Params,
) -> tuple[RunFolder | None, _Progress]:
    """The folder, and how far the run in it has come."""
    state = algorithm.init(engine, theta0)
    if out is None or not resume:
        folder = None if out is None else RunFolder.create(Path(out), header)
        return folder, _Progress(state, engine.active, folder)
    folder = RunFolder.open(Path(out))
    _check_same(folder, header)
    checkpoint = folder.last_checkpoint()
    done = checkpoint.rounds if checkpoint else 0
    if checkpoint:
        saved = dict(checkpoint.tensors)
        engine.restore_quarantine(_reasons(folder, done, saved.pop("engine/active")))
        state = unflatten(state, saved)
    folder.rewind(done)
    folder.update_header(status="running", rounds=header["rounds"])
    seconds = sum(row["seconds"] for row in folder.rows("timing.jsonl"))
    return folder, _Progress(
        state, engine.active, folder, done, done, folder.rows(), folder.graphs(), seconds
    )


def _identity(algorithm: Any, federation: Federation, seed: int, theta0: Params) -> dict[str, Any]:
    """What must be the same for a run to be continued: method, data, seed and first model."""
    digest = hashlib.sha256()
    tensors = [federation.classes, *theta0.values()]
    for split in (federation.train, federation.test):
        tensors += [
            split.index,
            split.mask,
            split.y,
            split.x.flatten()[:: 1 + split.x.numel() // 4096],
        ]
    for t in tensors:
        digest.update(f"{t.dtype}{tuple(t.shape)}".encode())
        digest.update(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return {
        "algorithm": {"name": type(algorithm).__name__, **_options(algorithm)},
        "federation": federation.name,
        "clients": federation.num_clients,
        "seed": seed,
        "digest": digest.hexdigest()[:32],
    }


def _options(algorithm: Any) -> dict[str, Any]:
    """The options of a method; one's own class need not be a dataclass."""
    return as_dict(algorithm) if is_dataclass(algorithm) else {}


def _check_same(folder: RunFolder, header: Mapping[str, Any]) -> None:
    """Refuse to continue a run with another method, other data or another seed.

    Raises:
        RunError: names what differs.
    """
    before, now = folder.header, header["identity"]
    for name, value in before.get("identity", {}).items():
        if json.loads(json.dumps(now[name])) != value:
            raise RunError(
                f"{folder.path} was made with another {name.replace('digest', 'data or model')}: "
                "continue it with what it was started with, or choose another out"
            )
    if before.get("rounds_done", 0) > header["rounds"]:
        raise RunError(
            f"rounds = {header['rounds']} is not possible: {folder.path} has done "
            f"{before['rounds_done']} already. Give as many or more"
        )


def _header(
    method: str, rounds: int, seed: int, engine: LocalEngine, config: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What `run.json` says about a run: enough to repeat it and to judge its numbers."""
    from scool import __version__

    is_cuda = engine.device.type == "cuda"
    return {
        "format": "scool-run-1",
        "status": "running",
        "method": method,
        "rounds": rounds,
        "rounds_done": 0,
        "seed": seed,
        "config": dict(config) if config else None,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {
            "scool": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "hardware": {
            "device": torch.cuda.get_device_name(engine.device) if is_cuda else "cpu",
            "machine": platform.machine(),
            "system": platform.system(),
            "threads": torch.get_num_threads(),
        },
        "command": [Path(sys.argv[0]).name.replace("__main__.py", "scool"), *sys.argv[1:]],
    }
