"""What a run computes on: the device, how much is done there at once, and the processes that share
the work."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from math import prod
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scool.data.federation import Federation
from scool.errors import ConfigError, ModelError

HAS_TRITON = find_spec("triton") is not None

_CPU_BUDGET = 2 << 30  # bytes of temporaries we allow ourselves without asking
_EVALUATION_BUDGET = 1 << 30  # larger calls are no faster
_MOST_MODELS = 65_535  # programs of a kernel in its second direction
_LEAST_SAMPLES = 8  # per client: with fewer the call costs more than the work

T = TypeVar("T")


def resolve_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one; asking for what is absent is an error."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.split(":")[0] not in ("cpu", "cuda"):
        raise ConfigError(f"device = {name!r} is not possible: use auto, cpu or cuda")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device = {name!r} is not a device: use auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"device = {name!r} is not possible: this torch ({torch.__version__}) sees no CUDA "
            "device. Use --device cpu, or install a CUDA build of torch"
        )
    return device


class MemoryWarning(UserWarning):
    """Memory ran out, and less is done at once: correct but slower."""


def _budget(device: torch.device) -> int:
    """Bytes that temporaries may take: half of what a GPU has free, a fixed share on a CPU."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    return _CPU_BUDGET


def _bytes_of(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


def clients_at_once(module: nn.Module, federation: Federation, device: torch.device) -> int:
    """How many models to train side by side; a method may train several per client.

    A model in training takes about four copies of its parameters (model, gradient, update,
    result) and its activations, guessed as 1,000 times a sample's inputs for a small batch.
    """
    parameters = _bytes_of(module)
    activations = 1000 * 4 * prod(federation.input_shape)
    return max(1, min(_MOST_MODELS, _budget(device) // (4 * parameters + activations)))


def samples_at_once(
    module: nn.Module, federation: Federation, device: torch.device, activations: int
) -> int:
    """How many samples to push through models in one evaluation call.

    `activations` says how many times the size of its input a sample takes. On a GPU, which holds
    several copies of all models, these should not add more than two to them.
    """
    is_cuda = device.type == "cuda"
    sample = activations * 4 * max(64, prod(federation.input_shape))
    most = min(1 << 18, min(_budget(device), _EVALUATION_BUDGET) // sample)
    if is_cuda:
        models = federation.num_clients * sum(
            p.numel() * p.element_size() for p in module.parameters()
        )
        most = min(most, max(_LEAST_SAMPLES * federation.num_clients, 2 * models // sample))
    return max(1, most)


def memory_at_start(device: torch.device) -> int:
    """Bytes in use on a GPU now; `memory_used` looks for the peak from here on."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def memory_used(
    module: nn.Module, clients: int, device: torch.device, start: int
) -> dict[str, float]:
    """What this process took on a GPU since `memory_at_start`, in bytes: at the start (the data and
    the first models), at most, at most with what is kept for captured steps, all models held
    here; and peak less start in units of these models. Nothing on a CPU."""
    if device.type != "cuda":
        return {}
    models = clients * _bytes_of(module)
    peak = torch.cuda.max_memory_allocated(device)
    return {
        "start": start,
        "peak": peak,
        "reserved": torch.cuda.max_memory_reserved(device),
        "models": models,
        "added_models": (peak - start) / models,
    }


@final
class Capacity:
    """How many clients train and how many samples are evaluated at once; less after each time
    that memory ran out."""

    def __init__(self, clients: int, rows: int, free: Callable[[], None]) -> None:
        self.clients, self.rows, self._free = clients, rows, free
        self._is_told = False

    def each(self, ids: Tensor, work: Callable[[Tensor], None]) -> None:
        """`work` on the clients, as many at once as memory allows. If it fails, it must leave
        nothing behind."""
        done = 0
        while done < len(ids):
            part = ids[done : done + self.clients]
            done += len(part) if self.attempt(partial(work, part), len(ids)) else 0

    def fit(self, work: Callable[[], T], clients: int | None = None) -> T:
        """The result of `work`, on so many clients where that matters, repeated with less at once
        where memory runs out."""
        result: list[T] = []
        while not self.attempt(lambda: result.append(work()), clients or self.clients):
            pass
        return result[0]

    def attempt(self, work: Callable[[], object], clients: int) -> bool:
        """Whether `work` succeeded on `count` clients or as many as memory allows; if not, half as
        many are tried the next time."""
        try:
            work()
            return True
        except torch.OutOfMemoryError as error:
            reason = str(error).split(". ")[0]
        self._halve(reason, min(clients, self.clients))  # the call's tensors are freed by now
        return False

    def _halve(self, reason: str, clients: int) -> None:
        if clients == 1 and self.rows == 1:
            raise ModelError(
                f"the model does not fit into memory even for one client at a time ({reason}). Use "
                "a smaller model or batch, a larger GPU, or --device cpu"
            )
        if clients > 1:  # one alone does not say how many fit
            self.clients = clients // 2
        self.rows = max(1, self.rows // 2)
        self._free()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if not self._is_told:
            self._is_told = True
            warnings.warn(
                f"out of memory ({reason}): from now on fewer clients and samples are taken at "
                "once. Results stay the same; --client-chunk sets how many models train at once",
                MemoryWarning,
                stacklevel=2,
            )


@contextmanager
def fitting_threads(module: nn.Module, num_clients: int) -> Iterator[None]:
    """Use one CPU thread while the stack of models is small.

    Below some two million parameters in all, handing a step to a second thread costs more than it
    saves, and on a busy machine waiting for it costs many times more.
    """
    before = torch.get_num_threads()
    if num_clients * sum(p.numel() for p in module.parameters()) < 2_000_000:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Let float32 products on a GPU use TF32: ten bits of mantissa, several times the speed."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# ---------------------------------------------------------------------- processes

_leading: list[Callable[[dict[str, Any]], None]] = []  # how followers hear of the next run


class Processes:
    """This process alone, as in most runs: every agreement is trivial. `ranks/` has the version for
    torch's process groups."""

    rank = 0
    size = 1

    @property
    def is_first(self) -> bool:
        """Whether this process keeps the records and prints."""
        return self.rank == 0

    def share(self, words: Any) -> list[Any]:
        """Share something small that JSON can hold: the values of all processes."""
        return [words]

    def first(self, work: Callable[[], T]) -> T | None:
        """The result of `work` on the first process; if it fails, all end with its message."""
        return work()

    def each(self, work: Callable[[], T]) -> T:
        """The result of `work` on every process; if one fails, all end with its message."""
        return work()

    def agree(self, what: str, value: object) -> None:
        """Stop if the processes hold different values of something that must be equal."""

    def close_round(self) -> dict[str, Any]:
        """The bytes sent between the processes since the last call; empty for a single process."""
        return {}


def processes() -> Processes:
    """The ranks of torch's process group if there is one, else this process alone."""
    if not (dist.is_available() and dist.is_initialized()):
        return Processes()
    from scool.engine.ranks.group import Ranks

    ranks = Ranks()
    return ranks if ranks.is_group else Processes()


def lead(tell: Callable[[dict[str, Any]], None] | None) -> None:
    """From now on announce the runs of this process to followers by this function; None: to
    none."""
    _leading[:] = [] if tell is None else [tell]


def announce(job: dict[str, Any]) -> None:
    """Tell the followers, if there are any, which run comes next."""
    for tell in _leading:
        tell(job)
