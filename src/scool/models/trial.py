"""A model on a few samples before training: whether it fits the data, and means what it says."""

import warnings

import torch
from torch import Tensor, nn

from scool.errors import ModelError
from scool.models.stack import Functional
from scool.types import Params

CLOSE = 0.01
"""What an output may differ by when a sample is alone, of the largest output: low precision."""


def check_outputs(model: Functional, params: Params, x: Tensor, columns: range) -> None:
    """Try one client's model on a few inputs (b, ...).

    Args:
        columns: how many outputs a sample may have.

    Raises:
        ModelError: the model does not take such inputs, gives outputs of another shape than
            (b, outputs), or changes parameters or buffers by itself.
    """
    buffers = dict(model.module.named_buffers())
    before = {name: t._version for name, t in (buffers | params).items()}
    given = f"{len(x)} inputs of shape {tuple(x.shape[1:])} and type {x.dtype}"
    try:
        with torch.no_grad():
            outputs = model.alone(params, x)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        words = _about_tokens(model.module, x) or f"{error}; give a model for such inputs"
        raise ModelError(f"the model fails on {given}: {words}") from error
    if not isinstance(outputs, Tensor):
        raise ModelError(
            f"the model gives a {type(outputs).__name__} for {given}, not a tensor: give a module "
            "that takes the outputs out of it, a row per sample"
        )
    found = tuple(outputs.shape)
    if len(found) != 2 or found[0] != len(x) or found[1] not in columns:
        wanted = f"{columns.start}{'' if len(columns) == 1 else ' or more'}"
        raise ModelError(
            f"the model gives outputs of shape {found} for {given}; "
            f"expected is ({len(x)}, {wanted}): one row per sample, one column per class or target"
        )
    if not outputs.is_floating_point():
        raise ModelError(
            f"the model gives outputs of type {outputs.dtype} for {given}: give real numbers, one "
            "column per class or target"
        )
    after = dict(model.module.named_buffers())
    changed = [name for name, t in after.items() if t is not buffers.get(name)]
    changed += [name for name, t in (buffers | params).items() if t._version != before[name]]
    if changed:
        raise ModelError(
            f"forward changes {changed[0]!r} of the model: clients would share what is kept "
            "there, or lose it. Let forward compute outputs from parameters and samples alone"
        )


@torch.no_grad()
def check_rows(model: Functional, params: Params, x: Tensor) -> None:
    """Whether the answer to a sample depends on that sample alone, in evaluation; a warning where
    it does not. Models that draw random numbers are not judged.

    Raises:
        ModelError: the model does not take a sample alone.
    """
    was_training = model.module.training
    model.module.eval()
    try:
        together, again = model.alone(params, x), model.alone(params, x)
        alone = model.alone(params, x[:1])
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ModelError(f"the model fails on a sample alone: {error}") from error
    finally:
        model.module.train(was_training)
    if alone.shape != together[:1].shape:
        raise ModelError(
            f"the model gives outputs of shape {tuple(alone.shape)} for a sample alone, expected "
            f"is {tuple(together[:1].shape)}: does it squeeze the first axis away?"
        )
    gap, largest = (alone - together[:1]).abs().max(), together.abs().max()
    if bool(gap > CLOSE * largest) and torch.equal(together, again):
        warnings.warn(
            "what the model says of a sample depends on the other samples of its batch, so that "
            "answers differ with the batch: let forward compute it from the sample alone",
            stacklevel=2,
        )


@torch.no_grad()
def warn_probabilities(model: Functional, params: Params, x: Tensor) -> None:
    """Outputs of a softmax, of which cross-entropy takes another one."""
    outputs = model.alone(params, x)
    sums = outputs.sum(dim=1)
    if bool((outputs >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-4):
        warnings.warn(
            "the outputs of the model are probabilities, and are taken for logits: training is "
            "slow then, and predict_proba wrong. Leave the softmax at its end out",
            stacklevel=2,
        )


def _about_tokens(module: nn.Module, x: Tensor) -> str:
    """Why a model cannot take whole numbers, or needs them; empty where it is something else."""
    first = next((m for m in module.modules() if not any(True for _ in m.children())), None)
    if not isinstance(first, nn.Embedding):
        if x.dtype != torch.int64:
            return ""
        return "these are tokens; begin the model with an embedding, or leave tokens=True out"
    if x.is_floating_point():
        return (
            "it begins with an embedding, which takes whole numbers; make the federation with "
            "tokens=True"
        )
    largest, rows = int(x.max()), first.num_embeddings
    if 0 <= int(x.min()) and largest < rows:
        return ""
    return f"there is a token {largest}, and the embedding knows 0 to {rows - 1}; make it larger"
