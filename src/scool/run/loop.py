"""One run: rounds of one method on one federation, recorded, resumable."""

import platform
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scool.algorithms.between_rounds import wrapped
from scool.contracts import Recorder
from scool.data.federation import Federation
from scool.data.validation import with_validation
from scool.engine.local import LocalEngine
from scool.engine.memory import fitting_threads, memory_at_start, memory_used
from scool.engine.ranks.group import RankLost, Ranks
from scool.engine.ranks.jobs import announce
from scool.engine.sharded import AnyEngine, ShardedEngine
from scool.engine.steps.formulation import Precision
from scool.errors import RunError, ScoolError, check_kind, require
from scool.evaluation.accuracy import evaluate
from scool.models import (
    ModelConfig,
    check_stackable,
    fixed_tensors,
    initial_params,
    parameters_of,
)
from scool.recording.clients import NAME as CLIENTS
from scool.recording.clients import clients_file
from scool.recording.header import FORMAT
from scool.recording.models import FIXED
from scool.recording.seals import identity_seal
from scool.recording.writer import RecordKeeper, RunWriter
from scool.run.checks import check_method, checked_model, checked_step, remarks
from scool.run.options import as_dict
from scool.run.progress import identity_of, open_run, telling_what_is_saved
from scool.run.quarantine import as_mixed, check_anybody, check_test, warn_quarantined
from scool.run.result import Result
from scool.run.round_row import describe_round
from scool.run.stopping import Stop
from scool.types import Params, Tree

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
        check_stackable(model)
        return model, parameters_of(model)
    return initial_params(checked_model(model), seed)


def model_options(model: Model) -> dict[str, Any] | None:
    """Which network by name, so that its parameters can be used later; None for one's own."""
    if isinstance(model, str):
        model = ModelConfig(model=model)
    return as_dict(model) if isinstance(model, ModelConfig) else None


def prepare_data(federation: Federation, algorithm: Any, seed: int) -> Federation:
    """Validation samples for a method that judges by them (it has a field `validation`, their
    share); the others train on all."""
    share = getattr(algorithm, "validation", 0.0)
    return with_validation(federation, share, seed) if share else federation


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
    slow_momentum: float = 0.0,
    model_average: float = 0.0,
    strict: bool = False,
    precision: Precision = "float32",
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
        checkpoint_every: rounds between checkpoints; 0: none, so that nothing but the records is
            left of a finished run, and only a stop by a person saves the state.
        client_chunk: models trained side by side; 0 chooses by free memory. No influence on
            results.
        slow_momentum: how much of its last change a client repeats in every round, see
            `algorithms.between_rounds`; 0 for none.
        model_average: memory of the average over rounds that is scored and kept; 0 for the last
            model.
        strict: stop when a client's numbers stop being finite, instead of leaving it out.
        precision: of the products in local training, `float32` or `bf16`; models, updates, cross
            losses and scores are float32 (TF32 on a GPU) in both.

    In a process group of torch (see `docs/scale.md`) every rank calls this with the same arguments
    and holds some of the clients; the first one writes the records.

    Returns:
        the models, their scores, the graph of every round, and what it cost. Of several ranks the
        first has all models, the others have those of their clients.
    """
    is_data = isinstance(federation, Federation)
    require(is_data, "federation", federation, "give one, e.g. of scool.from_arrays(...)")
    for name, value, wanted in (
        ("rounds", rounds, int),
        ("seed", seed, int),
        ("eval_every", eval_every, int),
        ("checkpoint_every", checkpoint_every, int),
        ("client_chunk", client_chunk, int),
        ("slow_momentum", slow_momentum, float),
        ("model_average", model_average, float),
        ("resume", resume, bool),
        ("strict", strict, bool),
    ):
        check_kind(name, value, wanted)
    rounds, seed = int(rounds), int(seed)  # numpy's would not get into records
    require(out is None or isinstance(out, str | Path), "out", out, "give the name of a folder")
    check_method(algorithm)
    require(rounds >= 1, "rounds", rounds, "give at least 1")
    require(seed >= 0, "seed", seed, "give 0 or more")
    require(eval_every >= 1, "eval_every", eval_every, "give at least 1")
    require(checkpoint_every >= 0, "checkpoint_every", checkpoint_every, "give 0 (none) or more")
    require(client_chunk >= 0, "client_chunk", client_chunk, "give 0 (automatic) or more")
    if config is not None:
        where = None if out is None else str(Path(out).absolute())
        announce({"config": dict(config), "out": where, "resume": resume})
    ranks = Ranks()
    for remark in remarks(algorithm, rounds) if ranks.is_first else []:
        warnings.warn(remark, stacklevel=2)
    federation = prepare_data(federation, algorithm, seed)
    kind = type(algorithm).__name__
    method = method or kind
    between = {"slow_momentum": slow_momentum, "model_average": model_average}
    module, theta0 = prepare_model(model, federation, seed)
    options: dict[str, Any] = {
        "seed": seed,
        "device": device,
        "client_chunk": client_chunk,
        "strict": strict,
        "precision": precision,
    }
    engine: AnyEngine
    if not ranks.is_group:
        engine = LocalEngine(federation, module, **options)
    else:
        engine = ShardedEngine(federation, module, ranks=ranks, **options)
    check_test(federation, strict, ranks.is_first)
    header = _header(method, rounds, seed, engine, config)
    header["model"] = model_options(model)
    fixed = {} if out is None else fixed_tensors(module)
    header["identity"] = identity_of(algorithm, federation, seed, theta0, fixed)
    header["identity"]["between_rounds"] = between
    header["run"] = identity_seal(header["identity"])
    algorithm = wrapped(algorithm, **between)
    ranks.agree("method, data or first model", header["identity"])
    with ExitStack() as held:
        progress = open_run(out, resume, header, engine, algorithm, theta0, held)
        writer = progress.writer
        held.enter_context(telling_what_is_saved(progress))
        if writer:
            ranks.first(lambda: _describe(writer, federation, fixed))
        is_watched = bool(recorders) or not ranks.is_first
        recorders = recorders if ranks.is_first else ()
        for recorder in recorders:
            if writer is not None and isinstance(recorder, RecordKeeper):
                recorder.attach(writer)
            recorder.start(header, progress.done)
        bytes_at_start = memory_at_start(engine.device)
        stop = Stop(ranks)
        try:
            with fitting_threads(module, len(engine.owned)), stop.listening():
                while progress.done < rounds:
                    t = progress.done
                    is_last = t + 1 == rounds
                    began = time.perf_counter()
                    outcome = algorithm.step(engine, progress.state, t)
                    state, info = checked_step(algorithm, outcome, engine.active)
                    check_anybody(engine)
                    info = as_mixed(info, engine.active)
                    is_evaluated = is_last or (t + 1) % eval_every == 0
                    scores = evaluate(engine, state.theta, federation) if is_evaluated else None
                    row = describe_round(t, info, scores, engine, federation)
                    progress.finish_round(state, row, info, engine, time.perf_counter() - began)
                    for recorder in recorders:
                        recorder.round(row, info)
                    if not is_watched:
                        warn_quarantined(row, progress.history[:-1])
                    stop.agree(info["graph"])
                    progress.settle(engine, info["graph"])
                    is_due = checkpoint_every and progress.done % checkpoint_every == 0
                    if is_due or (is_last and (checkpoint_every or progress.asked)):
                        progress.save(engine)
                    progress.commit()
                    stop.check()
        except RankLost:
            raise  # see `telling_what_is_saved`
        except KeyboardInterrupt:
            if writer is None or not stop.is_agreed:
                raise
            progress.save(engine)
            done = progress.done
            progress.seal(status="interrupted", rounds_done=done)
            kept = "the state is saved, " if done else ""
            raise Interrupted(
                f"stopped after round {done} of {rounds} of {method}; {kept}"
                f"`scool resume {writer.path}` goes on"
            ) from None
        except Exception as error:
            if writer is not None and ranks.is_first:
                words = str(error) if isinstance(error, ScoolError) else repr(error)
                with suppress(ScoolError):  # a full disk may be what failed
                    writer.flush()
                with suppress(ScoolError):
                    writer.update_header(status="failed", reason=words[:1000])
            raise
        result = Result(
            method=method,
            seed=seed,
            rounds=rounds,
            seconds=progress.seconds,
            theta=_models(engine, progress.state.theta),
            score=_scores(progress.history[-1]),
            history=progress.history,
            graphs=progress.graphs,
            federation=federation,
            module=module,
            run_dir=writer.path if writer else None,
            network=header["model"],
            run=writer.run if writer else header["run"],
        )
        if writer:
            about: dict[str, Any] = {"rounds_done": rounds, "result": result.summary()}
            if memory := memory_used(module, len(engine.owned), engine.device, bytes_at_start):
                about["memory"] = memory
            progress.seal(status="finished", **about)
        for recorder in recorders:
            recorder.end(result)
        return result


def _describe(writer: RunWriter, federation: Federation, fixed: Params) -> None:
    """Who the clients are, and what their models share, where the folder does not say it yet."""
    if not writer.has(CLIENTS):
        writer.write(CLIENTS, "clients", *clients_file(federation))
    if fixed and not writer.has(FIXED):
        writer.write(FIXED, "fixed", fixed)


def _models(engine: AnyEngine, theta: Tree) -> Tree:
    """The models on the CPU: all of them, but of several ranks only the first has all."""
    if isinstance(engine, ShardedEngine):
        return engine.collect(theta)
    return {name: t.cpu() for name, t in theta.items()}


def _scores(row: Mapping[str, Any]) -> Tensor:
    values = [torch.nan if s is None else s for s in row["scores"]]
    return torch.tensor(values, dtype=torch.float64)


def _header(
    method: str, rounds: int, seed: int, engine: AnyEngine, config: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What `run.json` says about a run: enough to repeat it and to judge its numbers."""
    from scool.version import __version__

    is_cuda = engine.device.type == "cuda"
    return {
        "format": FORMAT,
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
            "ranks": engine.ranks.size if isinstance(engine, ShardedEngine) else 1,
        },
        "command": [Path(sys.argv[0]).name.replace("__main__.py", "scool"), *sys.argv[1:]],
    }
