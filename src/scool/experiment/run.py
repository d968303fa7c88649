"""One run: rounds of one method on one federation, recorded, resumable."""

import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scool.contracts import Recorder
from scool.data.federation import Federation
from scool.engines.local import LocalEngine
from scool.errors import RunError, require
from scool.evaluation.accuracy import evaluate
from scool.experiment.result import Result, finite
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
    folder, first, state = _open(out, resume, header, engine, algorithm, theta0)
    history = folder.rows() if folder else []
    graphs: dict[int, Tensor] = folder.graphs() if folder else {}
    spent = sum(row["seconds"] for row in folder.rows("timing.jsonl")) if folder else 0.0
    for recorder in recorders:
        recorder.start(header, first)
    active, saved, done = engine.active, first, first
    try:
        for t in range(first, rounds):
            began = time.perf_counter()
            new_state, info = algorithm.step(engine, state, t)
            is_evaluated = (t + 1) % eval_every == 0 or t + 1 == rounds
            scores = evaluate(engine, new_state.theta, federation) if is_evaluated else None
            row = describe_round(t, info, scores, engine, federation)
            seconds = time.perf_counter() - began
            if folder:
                _record(folder, t, row, info, seconds)
            history.append(row)
            graphs[t] = info["graph"].cpu().float()  # type: ignore[union-attr]
            spent += seconds
            state, active, done = new_state, engine.active, t + 1
            for recorder in recorders:
                recorder.round(row, info)
            if folder and (done % checkpoint_every == 0 or done == rounds):
                _checkpoint(folder, done, state, active)
                saved = done
    except KeyboardInterrupt:
        if folder is None:
            raise
        if done > saved:
            _checkpoint(folder, done, state, active)
        folder.update_header(status="interrupted", rounds_done=done)
        raise Interrupted(
            f"stopped after round {done} of {rounds}; the state is saved: "
            f"`scool resume {folder.path}` goes on"
        ) from None
    result = Result(
        method=method,
        seed=seed,
        rounds=rounds,
        seconds=spent,
        theta={name: t.cpu() for name, t in state.theta.items()},
        score=_final_score(history, engine, state, federation),
        history=history,
        graphs=graphs,
        federation=federation,
        module=module,
        run_dir=folder.path if folder else None,
    )
    if folder:
        folder.update_header(status="finished", rounds_done=rounds, result=result.summary())
    for recorder in recorders:
        recorder.end(result)
    return result


def _open(
    out: str | Path | None,
    resume: bool,
    header: Mapping[str, Any],
    engine: LocalEngine,
    algorithm: Any,
    theta0: Params,
) -> tuple[RunFolder | None, int, Any]:
    """The folder, the first round to run, and the state before it."""
    state = algorithm.init(engine, theta0)
    if out is None:
        return None, 0, state
    if not resume:
        return RunFolder.create(Path(out), header), 0, state
    folder = RunFolder.open(Path(out))
    checkpoint = folder.last_checkpoint()
    rounds = checkpoint.rounds if checkpoint else 0
    if checkpoint:
        saved = dict(checkpoint.tensors)
        engine.restore_quarantine(saved.pop("engine/active"))
        state = unflatten(state, saved)
    folder.rewind(rounds)
    folder.update_header(status="running")
    return folder, rounds, state


def _record(folder: RunFolder, t: int, row: dict[str, Any], info: Info, seconds: float) -> None:
    folder.write_graph(t, info["graph"])  # type: ignore[arg-type]
    folder.append("timing.jsonl", {"round": t, "seconds": seconds})
    folder.append("metrics.jsonl", row)


def _checkpoint(folder: RunFolder, done: int, state: Any, active: Tensor) -> None:
    folder.write_checkpoint(done, flatten(state) | {"engine/active": active})


def _final_score(
    history: Sequence[Mapping[str, Any]], engine: LocalEngine, state: Any, federation: Federation
) -> Tensor:
    scores = history[-1].get("scores") if history else None
    if scores is None:
        return evaluate(engine, state.theta, federation).score
    return torch.tensor([torch.nan if s is None else s for s in scores], dtype=torch.float64)


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
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


__all__ = ["Interrupted", "Model", "finite", "fit", "prepare_model"]
