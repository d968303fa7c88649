"""One run: rounds of one method on one federation, recorded, resumable, stopped by a person."""

import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Unpack, final

import torch
from torch import Tensor

from scool.contracts import Method, OwnMethod, Recorder
from scool.data.federation import Federation
from scool.engine.machine import Processes, fitting_threads, memory_used, processes
from scool.errors import RankLost, RunError, ScoolError, require
from scool.evaluation.scores import describe_owners, describe_round, evaluate
from scool.graph.edges import Edges, Matrix
from scool.run.checks import as_method, as_mixed, check_anybody, checked_step, warn_quarantined
from scool.run.options import Changes, RunSettings, with_changes
from scool.run.prepare import EngineMaker, Model, Order, Run, how_to_go_on, prepare
from scool.run.result import Result


@final
class Stop:
    """Whether somebody wants the run to stop, and whether all ranks know."""

    def __init__(self, ranks: Processes) -> None:
        self.ranks = ranks
        self.is_asked = False
        self.is_agreed = ranks.size == 1  # one process agrees with itself at any moment

    def ask(self, number: int, frame: object) -> None:
        """A signal: the first asks for the end of the round, the second does not wait for it."""
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True

    def agree(self, graph: Matrix | float) -> None:
        """At the end of a round: make sure that all ranks hold the same graph.

        Raises:
            RunError: the graphs differ, so that nobody would know what to send to whom.
        """
        if self.ranks.size > 1:
            self.ranks.agree("graph", _checksum(graph))

    def check(self) -> None:
        """At the end of a round: stop together.

        Raises:
            KeyboardInterrupt: on every rank alike.
        """
        if self.ranks.size > 1 and any(self.ranks.share(self.is_asked)):
            self.is_agreed = True
            raise KeyboardInterrupt

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Ctrl-C and a scheduler's stop end a run of several ranks after the round they come in."""
        is_main = threading.current_thread() is threading.main_thread()
        listens = is_main and self.ranks.is_first and self.ranks.size > 1
        numbers = (signal.SIGINT, signal.SIGTERM) if listens else ()
        before = {number: signal.signal(number, self.ask) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _checksum(graph: Matrix | float) -> int:
    """A checksum of the bits of all weights."""
    if isinstance(graph, Edges):
        return int((graph.values.double().view(torch.int64) * (graph.keys + 1)).sum())
    return int(torch.as_tensor(graph).double().contiguous().view(torch.int64).sum())


class Interrupted(RunError):
    """A person stopped the run; its state was saved."""


def fit(
    federation: Federation,
    model: Model,
    algorithm: Method[Any] | OwnMethod,
    settings: RunSettings | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    recorders: Sequence[Recorder] = (),
    method: str | None = None,
    verbose: bool | None = None,
    **changes: Unpack[Changes],
) -> Result:
    """Train personal models on a federation with one method.

    Args:
        federation: the clients' data.
        model: `linear`, `mlp`, `cnn2`, `cnn4`, a `ModelConfig`, a function that builds an
            `nn.Module`, or a module whose present parameters every client starts from.
        algorithm: e.g. `SCooL(prior=SBM())`, `LocalOnly()`, or a method of your own.
        settings: all options below in one value, for many runs alike.
        out: a folder for the records; None: nothing is written.
        resume: continue the run in `out` to bit-identical results (on a CPU).
        recorders: they watch the run.
        method: the name in records; default: the recipe or the prior of SCooL, else the name of the
            class.
        verbose: progress on stderr: a live view on a terminal, else plain lines. None: on a
            terminal, where no recorders are given; False: nothing.
        **changes: options by name, on top of `settings`, such as `rounds=100` or `seed=1`; all of
            them are described in `scool.Changes`.

    In a process group of torch (see `docs/scale.md`) every rank calls this with the same arguments
    and holds some of the clients; the first one writes the records.

    Returns:
        the models, their scores, the graph of every round, and what it cost. Of several ranks the
        first has all models, the others have those of their clients.
    """
    chosen = with_changes(settings, changes)
    with ExitStack() as held:
        recorders = [*_shown(verbose, chosen.rounds, recorders, held), *recorders]
        about: dict[str, Any] = {"out": out, "resume": resume, "method": method}
        return carry_out(federation, model, algorithm, chosen, recorders=recorders, **about)


def _shown(
    verbose: bool | None, rounds: int, recorders: Sequence[Recorder], held: ExitStack
) -> list[Recorder]:
    """The recorder that shows progress, where it is wanted."""
    require(verbose in (None, True, False), "verbose", verbose, "give True, False or None")
    is_wanted = sys.stderr.isatty() and not recorders if verbose is None else verbose
    if not is_wanted or not processes().is_first:
        return []
    from scool.display.live import Console

    return [held.enter_context(Console(rounds))]


def carry_out(
    federation: Federation,
    model: Model,
    algorithm: Method[Any] | OwnMethod,
    settings: RunSettings,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    recorders: Sequence[Recorder] = (),
    method: str | None = None,
    config: Mapping[str, Any] | None = None,
    engine: EngineMaker | None = None,
) -> Result:
    """`fit` for programs.

    Args:
        config: what `run.json` keeps, so that the command line can repeat the run.
        engine: builds the engine; None: where the clients live here, or on the ranks there are.
    """
    order = Order(settings, out, resume, recorders, method, config, engine)
    with ExitStack() as held:
        run = prepare(federation, model, as_method(algorithm), order, held)
        stop = Stop(run.progress.ranks)
        with _ended_well(run, stop):
            _loop(run, stop)
        return _finish(run)


def _loop(run: Run, stop: Stop) -> None:
    """Run rounds until all are done: one step of the method, its scores, its records."""
    settings, engine, progress = run.settings, run.engine, run.progress
    with fitting_threads(run.module, len(engine.owned)), stop.listening():
        while not settings.is_over(progress.history):
            t, began = progress.done, time.perf_counter()
            engine.begin_round(t)
            state = progress.state
            if len(new := run.attendance.newcomers(t)):
                state = run.method.admit(state, new)
            outcome = run.method.step(engine, state, t)
            state, info = checked_step(run.method, outcome, engine.active)
            check_anybody(engine)
            info = as_mixed(info, engine.active)
            scores = None
            if settings.evaluates(t):
                scores = evaluate(run.scorer, state.theta, run.federation, metrics=run.metrics)
            row = describe_round(t, info, scores, engine, run.federation)
            row |= describe_owners(engine, run.attendance.slow(t))
            progress.finish_round(state, row, info, engine, time.perf_counter() - began)
            for recorder in run.recorders:
                recorder.round(row, info)
            if not run.recorders and progress.ranks.is_first:
                warn_quarantined(row, progress.history[:-1], run.federation)
            stop.agree(info["graph"])
            progress.settle(engine, info["graph"])
            if settings.saves(progress.done, progress.asked, settings.is_over(progress.history)):
                progress.save(engine)
            progress.commit()
            stop.check()


@contextmanager
def _ended_well(run: Run, stop: Stop) -> Iterator[None]:
    """Save the state when a person stops the run; record the reason when it fails."""
    progress, writer = run.progress, run.progress.writer
    try:
        yield
    except RankLost:
        raise  # said by `prepare`
    except KeyboardInterrupt:
        if writer is None or not stop.is_agreed:
            raise
        progress.save(run.engine)
        done = progress.done
        progress.seal(status="interrupted", rounds_done=done)
        kept = "the state is saved, " if done else ""
        raise Interrupted(
            f"stopped after round {done} of {run.settings.rounds} of {run.header['method']}; {kept}"
            f"{how_to_go_on(run.header, writer.path)} continues it"
        ) from None
    except Exception as error:
        if writer is not None and progress.ranks.is_first:
            words = str(error) if isinstance(error, ScoolError) else repr(error)
            with suppress(ScoolError):  # a full disk may be what failed
                writer.flush()
            with suppress(ScoolError):
                writer.update_header(status="failed", reason=words[:1000])
        raise


def _finish(run: Run) -> Result:
    """Build the result and complete the records."""
    engine, progress, writer = run.engine, run.progress, run.progress.writer
    result = Result(
        method=run.header["method"],
        seed=run.settings.seed,
        rounds=progress.done,
        seconds=progress.seconds,
        theta=engine.collect(progress.state.theta),
        score=_scores(progress.history[-1]),
        history=progress.history,
        graphs=progress.graphs,
        federation=run.federation,
        module=run.predictor,
        run_dir=writer.path if writer else None,
        network=run.header["model"],
        run=writer.run if writer else run.header["run"],
    )
    if writer:
        about: dict[str, Any] = {"rounds_done": progress.done, "result": result.summary()}
        clients = len(engine.owned)
        if memory := memory_used(run.module, clients, engine.device, run.bytes_at_start):
            about["memory"] = memory
        progress.seal(status="finished", **about)
    for recorder in run.recorders:
        recorder.end(result)
    return result


def _scores(row: Mapping[str, Any]) -> Tensor:
    values = [torch.nan if s is None else s for s in row["scores"]]
    return torch.tensor(values, dtype=torch.float64)
