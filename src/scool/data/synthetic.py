"""Planted groups of clients with a known graph: classification and regression."""

import torch
from torch import Tensor

from scool.data.build import group_graph, group_task, hold_out, pad_rows, within
from scool.data.federation import Federation, Split, Task
from scool.errors import require, unknown
from scool.randomness import generator


def synthetic(
    num_clients: int = 20,
    groups: int = 4,
    samples_per_client: int = 40,
    *,
    task: Task = "classification",
    seed: int = 0,
    num_features: int = 10,
    num_outputs: int = 0,
    unequal: bool = False,
    noise: float = 0.1,
    test_size: int = 400,
    val_fraction: float = 0.0,
) -> Federation:
    """Clients of one group learn the same function of the same kind of inputs.

    Inputs come from gaussian clusters that all groups share. Each group has its own linear
    teacher: the class is the largest output of the teacher, the regression target is the output
    plus noise (test targets carry no noise). Client i is in group i % groups.

    Args:
        num_clients: K.
        groups: planted groups, at most K.
        samples_per_client: mean number of training samples.
        task: `classification` or `regression`.
        seed: everything random follows from it.
        num_features: input size.
        num_outputs: classes (0: five) or regression targets (0: one).
        unequal: sizes from a quarter to seven quarters of the mean, at least one sample.
        noise: standard deviation added to regression targets.
        test_size: samples of the common test pool.
        val_fraction: share of each client's samples set aside for validation.

    >>> synthetic(3, groups=1, task="regression").train.y.shape
    torch.Size([3, 40, 1])
    """
    if task not in ("classification", "regression"):
        unknown("task", task, ("classification", "regression"))
    require(num_clients > 0, "clients", num_clients, "a federation has at least one client")
    require(0 < groups <= num_clients, "groups", groups, f"give 1 to {num_clients}")
    require(samples_per_client > 0, "samples_per_client", samples_per_client, "give 1 or more")
    outputs = num_outputs or (5 if task == "classification" else 1)
    group = torch.arange(num_clients) % groups
    rng = generator(seed, "synthetic", "teachers")
    teachers = torch.randn(groups, num_features, outputs, generator=rng) / num_features**0.5
    centres = 1.5 * torch.randn(8, num_features, generator=rng)
    sizes = _sizes(num_clients, samples_per_client, unequal, seed)
    x_train = _inputs(centres, sum(sizes), seed, "train")
    x_test = _inputs(centres, test_size, seed, "test")
    y_train, y_test = (_answers(x, teachers, task)[group] for x in (x_train, x_test))
    if task == "regression":
        rng = generator(seed, "synthetic", "noise")
        y_train = y_train + noise * torch.randn(y_train.shape[1:], generator=rng)
    train_rows, val_rows = hold_out(list(torch.arange(sum(sizes)).split(sizes)), val_fraction, seed)
    train = _split(x_train, y_train, *pad_rows(train_rows))
    val = _split(x_train, y_train, *pad_rows(val_rows, train_rows))
    test = _split(x_test, y_test, *pad_rows([torch.arange(test_size)] * num_clients))
    classes = torch.ones(num_clients, outputs, dtype=torch.bool)
    if task == "classification":
        classes = group_task(train, group, outputs)
        val, test = within(val, classes), within(test, classes)
    truth = group_graph(group)
    return Federation(f"synthetic/{task}", train, val, test, classes, task, truth, group)


def _sizes(num_clients: int, mean: int, unequal: bool, seed: int) -> list[int]:
    if not unequal:
        return [mean] * num_clients
    spread = torch.rand(num_clients, generator=generator(seed, "synthetic", "sizes"))
    return ((0.25 + 1.5 * spread) * mean).long().clamp(min=1).tolist()


def _inputs(centres: Tensor, count: int, seed: int, part: str) -> Tensor:
    rng = generator(seed, "synthetic", "inputs", part)
    cluster = torch.randint(len(centres), (count,), generator=rng)
    return centres[cluster] + torch.randn(count, centres.shape[1], generator=rng)


def _answers(x: Tensor, teachers: Tensor, task: Task) -> Tensor:
    """(groups, P) classes or (groups, P, outputs) targets of every input, group by group."""
    scores = x @ teachers
    return scores.argmax(dim=2) if task == "classification" else scores


def _split(x: Tensor, y: Tensor, index: Tensor, mask: Tensor) -> Split:
    """y: (K, P, ...) the answers of each client's teacher to the whole pool."""
    return Split(x, index, mask, y[torch.arange(len(index))[:, None], index])
