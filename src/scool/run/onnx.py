"""A client's model as an ONNX program, which needs neither scool nor torch."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from scool.errors import ModelError, need
from scool.evaluation.scores import own_outputs
from scool.run.client_model import ClientModel


class Answers(nn.Module):
    """The probabilities of the classes, or the targets."""

    def __init__(self, model: ClientModel) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("classes", model.classes)

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.model(x)
        if self.model.classes is None:
            told = self.model.preprocessing
            return told.in_unit(outputs) if told is not None else outputs
        return own_outputs(outputs, self.get_buffer("classes")).softmax(dim=-1)


def onnx_programs(models: Sequence[ClientModel]) -> Iterator[bytes]:
    """A program per model, with the input `x` (n, ...) of any number of samples and one output:
    `probabilities` (n, C), or `targets`. The network is translated once, and takes the parameters
    of one model after the other.

    Raises:
        ModelError: the network cannot be translated, or the shape of its inputs is not known.
        ScoolError: a package is missing.
    """
    for package in ("onnx", "onnxscript"):
        need(package, "ONNX export")
    first = models[0]
    if first.input_shape is None:
        raise ModelError("these records do not have the shape of the inputs, which ONNX needs")
    program = _translated(Answers(first).eval(), _example(first))
    for model in models:
        program.apply_weights(Answers(model).eval().state_dict())
        yield program.model_proto.SerializeToString()


def _example(model: ClientModel) -> Tensor:
    """Two samples, so that their number is not taken for a constant."""
    assert model.input_shape is not None
    kind = torch.int64 if model.takes_tokens else torch.uint8 if model.transform else torch.float32
    return torch.zeros(2, *model.input_shape, dtype=kind)


def _translated(answers: nn.Module, x: Tensor) -> torch.onnx.ONNXProgram:
    """The exporter talks a lot about packages that are not needed; what it fails at is said."""
    is_class = "classes" in answers.state_dict()
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                answers,
                (x,),
                dynamo=True,
                verbose=False,
                optimize=False,  # it would fold parameters, and those of others would not fit
                input_names=["x"],
                output_names=["probabilities" if is_class else "targets"],
                dynamic_shapes=({0: torch.export.Dim("n")},),
            )
    except Exception as error:
        raise ModelError(
            f"this network cannot be translated to ONNX ({type(error).__name__}: "
            f"{str(error).splitlines()[0]}): export without it"
        ) from error
    finally:
        log.setLevel(level)
    assert program is not None
    names = set(program.model.graph.initializers)
    if lost := sorted(answers.state_dict().keys() - names):
        raise ModelError(f"the ONNX program of this network lacks {lost[0]}: export without it")
    return program
