"""What happens once, before the first round: data, first models, engine, folder."""

import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scool.algorithms import METHODS, SCooL
from scool.algorithms.between_rounds import EarlyStopping, FineTuned, with_between, with_share
from scool.contracts import Engine, Method, Recorder
from scool.data.build import with_validation
from scool.data.federation import Federation
from scool.engine.local import LocalEngine
from scool.engine.machine import Processes, announce, memory_at_start, processes
from scool.engine.ranks.placement import cut
from scool.errors import RankLost, ScoolError, check_kind, require
from scool.evaluation.metrics import Metric
from scool.evaluation.scores import chosen_metrics
from scool.health import Attendance
from scool.learning.losses import Objective
from scool.models import (
    ModelConfig,
    check_stackable,
    fixed_tensors,
    initial_params,
    parameters_of,
)
from scool.recording.clients import NAME as CLIENTS
from scool.recording.clients import clients_file, read_clients
from scool.recording.folder import RunFolder
from scool.recording.models import FIXED
from scool.recording.seals import FORMAT, identity_seal
from scool.recording.writer import RecordKeeper, RunWriter
from scool.run.checks import check_rate, check_test, check_verbs, checked_model, remarks
from scool.run.identity import identity_of, source_commit
from scool.run.options import RunSettings, as_dict
from scool.run.progress import Progress, open_run
from scool.run.start import begin_from
from scool.types import Params
from scool.version import __version__

Model = nn.Module | str | ModelConfig | Callable[[], nn.Module]
EngineMaker = Callable[[Federation, nn.Module, RunSettings], Engine]


@dataclass(frozen=True)
class Order:
    """What a caller asks of a run besides data, model and method."""

    settings: RunSettings
    out: str | Path | None
    resume: bool
    recorders: Sequence[Recorder]
    name: str | None
    config: Mapping[str, Any] | None
    engine: "EngineMaker | None" = None

    def __post_init__(self) -> None:
        check_kind("resume", self.resume, bool)
        is_path = self.out is None or isinstance(self.out, str | Path)
        require(is_path, "out", self.out, "give the name of a folder")

    def tell_other_processes(self) -> None:
        """Tell the other processes of `--ranks` which run comes next, where this one leads them."""
        if self.config is not None:
            where = None if self.out is None else str(Path(self.out).absolute())
            announce({"config": dict(self.config), "out": where, "resume": self.resume})


@dataclass(frozen=True)
class Run:
    """One run, prepared: what its rounds need."""

    settings: RunSettings
    method: Method[Any]
    federation: Federation
    module: nn.Module  # that is trained
    predictor: nn.Module  # that answers with the models in `theta`; mostly the same
    engine: Engine
    header: Mapping[str, Any]
    progress: Progress
    recorders: Sequence[Recorder]  # none on other ranks than the first
    bytes_at_start: int
    metrics: Sequence[Metric]  # besides the score
    attendance: Attendance

    @property
    def scorer(self) -> Engine:
        """The engine as `theta` sees it."""
        is_one = self.predictor is self.module
        return self.engine if is_one else self.engine.view("scores", self.predictor)


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
    """The name and options of a network, so that its parameters can be used later; None for your
    own."""
    if isinstance(model, str):
        model = ModelConfig(model=model)
    return as_dict(model) if isinstance(model, ModelConfig) else None


def name_of(method: Any) -> str:
    """How records call a method of which only the options are known: SCooL by its recipe, or by its
    prior where it equals none (the local steps do not count); others by their class.

    >>> from scool.priors import SBM
    >>> name_of(SCooL(prior=SBM())), name_of(SCooL(prior=SBM(num_blocks=2)))
    ('scool-sbm', 'SCooL-SBM')
    """
    if not isinstance(method, SCooL):
        return type(method).__name__
    options = as_dict(method) | {"sgd": None, "prior_name": type(method.prior).__name__}
    for name, (_, recipe) in METHODS.items():
        if isinstance(recipe, SCooL):
            found = as_dict(recipe) | {"sgd": None, "prior_name": type(recipe.prior).__name__}
            if found == options:
                return name
    return f"SCooL-{type(method.prior).__name__}"


def how_to_go_on(header: Mapping[str, Any], path: Path) -> str:
    """How to continue a run: a command, or a Python call where only Python has data and model."""
    if header.get("held"):  # a peer's: its folder is in that of its owner
        return f"`scool peer run {path.parent}`"
    if header.get("config"):
        return f"`scool resume {path}`"
    return f"the same `scool.fit(..., out={str(path)!r}, resume=True)`"


def prepare_data(federation: Federation, method: Method[Any], seed: int) -> Federation:
    """Set validation samples aside for a method that needs them; the others train on all."""
    share = method.validation
    if not share:
        return federation
    return with_validation(federation, share, seed, of_all=method.judges_all)


def prepare(
    federation: Federation, model: Model, method: Method[Any], order: Order, held: ExitStack
) -> Run:
    """All that happens once, before the first round. Folder and locks are closed with `held`."""
    is_data = isinstance(federation, Federation)
    require(is_data, "federation", federation, "give one, e.g. of scool.from_arrays(...)")
    settings = order.settings
    order.tell_other_processes()
    ranks = processes()
    if settings.participation != 1:
        method = with_share(method, settings.participation)
    if settings.slow_momentum or settings.model_average:
        method = with_between(method, settings.slow_momentum, settings.model_average)
    if settings.patience:
        method = EarlyStopping(method, settings.patience, min(settings.eval_every, settings.rounds))
    if settings.fine_tune:
        method = FineTuned(method, settings.fine_tune, settings.rounds, settings.patience)
    federation = prepare_data(federation, method, settings.seed)
    names = federation.client_names
    attendance = settings.attendance(federation.num_clients, names, method)
    said = remarks(method, settings.rounds, federation) + attendance.remarks(settings.rounds, names)
    for remark in said if ranks.is_first else []:
        warnings.warn(remark, stacklevel=3)
    metrics = chosen_metrics(settings.metrics, federation.task)
    module, theta0 = prepare_model(model, federation, settings.seed)
    rows = None
    if settings.start is not None:
        module, theta0, rows = begin_from(settings.start, module, federation)
    if order.engine is None:
        engine = _engine(federation, module, settings, ranks, attendance)
    else:
        engine = order.engine(federation, module, settings)
    check_test(federation, settings.strict, ranks.is_first)
    check_verbs(method, engine)
    check_rate(method)
    predictor = method.predictor(module, federation.task)
    remedy = f"{type(method.plain).__name__} answers with several models per client; give 0"
    for option in ("fine_tune", "patience"):
        value = getattr(settings, option)
        require(predictor is module or not value, option, value, remedy)
    fixed = {} if order.out is None else fixed_tensors(predictor, parameters_of(predictor))
    is_part = order.engine is not None and len(engine.owned) < engine.num_clients  # a peer
    mine = cut(federation, engine.owned.cpu()) if is_part else federation
    identity = identity_of(method, mine, settings.seed, theta0, fixed)
    if settings.objective != Objective():
        identity["objective"] = as_dict(settings.objective)
    identity |= {"owners": attendance.about} if attendance.about else {}
    header = _header(order, method, engine.device, model_options(model), identity)
    header["hardware"]["ranks"] = ranks.size
    if is_part:
        header["held"] = engine.owned.tolist()  # whose rows checkpoints have
    if order.out is not None and ranks.is_first:
        header["versions"]["commit"] = source_commit()
    ranks.agree("method, data or first model", identity)
    engine.begin_with(rows)
    progress = open_run(order.out, order.resume, header, engine, ranks, method, theta0, held)
    engine.begin_with(None)
    held.enter_context(_telling_what_is_saved(progress))
    if writer := progress.writer:
        ranks.first(lambda: _describe(writer, federation, fixed))
    recorders = order.recorders if ranks.is_first else ()
    _start(recorders, progress, {**header, "client_names": federation.client_names})
    used = memory_at_start(engine.device)
    return Run(
        settings,
        method,
        federation,
        module,
        predictor,
        engine,
        header,
        progress,
        recorders,
        used,
        metrics,
        attendance,
    )


@contextmanager
def _telling_what_is_saved(progress: Progress) -> Iterator[None]:
    """If another rank is lost at any moment, the first rank says how to continue."""
    try:
        yield
    except RankLost as error:
        writer = progress.writer
        if writer is None or not progress.ranks.is_first:
            raise
        with suppress(ScoolError):
            writer.flush()
        saved = f"round {progress.saved}" if progress.saved else "the start"
        saved += f" is saved, {how_to_go_on(writer.header, writer.path)} continues from there"
        raise RankLost(f"{error}; {saved}, with any number of ranks") from error


def _engine(
    federation: Federation,
    module: nn.Module,
    settings: RunSettings,
    ranks: Processes,
    attendance: Attendance,
) -> Engine:
    """Where the clients live: here, or on several ranks."""
    options: dict[str, Any] = {
        "seed": settings.seed,
        "device": settings.device,
        "client_chunk": settings.client_chunk,
        "strict": settings.strict,
        "precision": settings.precision,
        "attendance": attendance,
        "objective": settings.objective,
    }
    if type(ranks) is Processes:
        return LocalEngine(federation, module, **options)
    from scool.engine.ranks.group import Ranks
    from scool.engine.sharded import ShardedEngine

    assert isinstance(ranks, Ranks)
    return ShardedEngine(federation, module, ranks=ranks, **options)


def _start(recorders: Sequence[Recorder], progress: Progress, header: Mapping[str, Any]) -> None:
    for recorder in recorders:
        if progress.writer is not None and isinstance(recorder, RecordKeeper):
            recorder.attach(progress.writer)
        recorder.start(header, progress.done)


def _describe(writer: RunWriter, federation: Federation, fixed: Params) -> None:
    """Who the clients are, and what their models share, where the folder does not say it yet; for a
    peer also where others have come."""
    has, names = writer.has(CLIENTS), federation.client_names
    if has and names and writer.header.get("held"):
        known = read_clients(RunFolder(writer.path))
        has = known is not None and known.client_names == [*names]
    if not has:
        writer.write(CLIENTS, "clients", *clients_file(federation))
    if fixed and not writer.has(FIXED):
        writer.write(FIXED, "fixed", fixed)


def _header(
    order: Order,
    method: Method[Any],
    device: torch.device,
    model: dict[str, Any] | None,
    identity: dict[str, Any],
) -> dict[str, Any]:
    """What `run.json` says about a run: enough to repeat it and to judge its numbers."""
    is_cuda = device.type == "cuda"
    return {
        "format": FORMAT,
        "status": "running",
        "method": order.name or name_of(method.plain),
        "rounds": order.settings.rounds,
        "rounds_done": 0,
        "seed": order.settings.seed,
        "config": dict(order.config) if order.config else None,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {
            "scool": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "hardware": {
            "device": torch.cuda.get_device_name(device) if is_cuda else "cpu",
            "machine": platform.machine(),
            "system": platform.system(),
            "threads": torch.get_num_threads(),
        },
        "command": [Path(sys.argv[0]).name.replace("__main__.py", "scool"), *sys.argv[1:]],
        "model": model,
        "identity": identity,
        "run": identity_seal(identity),
    }
