"""The README.txt of an export: how somebody who knows nothing of a run uses its models."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from scool.version import __version__


class Read(NamedTuple):
    """What the text tells."""

    about: Mapping[str, Any]  # of the first model, as its file has it
    rounds: int
    models: int  # how many there are
    tensors: Mapping[str, Tensor]  # of the first model
    lines: Sequence[tuple[str, Mapping[str, float | None], Mapping[str, float]]]
    """Of some clients: the name, the scores, and whom it learned from with which weights."""
    file: str  # of the first model
    onnx: bool


def readme(what: Read) -> str:
    """The text."""
    about = what.about
    parts = [_head(what), _with_scool(what), _inputs(about), _with_torch(what)]
    if what.onnx:
        said = "targets" if about.get("classes") is None else "probabilities"
        file = what.file.replace(".safetensors", ".onnx")
        parts.append(
            "With ONNX Runtime, in any language; neither scool nor PyTorch is needed:\n\n"
            f'    session = onnxruntime.InferenceSession("models/{file}")\n'
            f'    {said} = session.run(None, {{"x": x}})[0]\n\n'
            "There, x holds the numbers that the network takes, see above."
        )
    return "\n\n".join([*parts, _quality(what)]) + "\n"


def _head(what: Read) -> str:
    whose = f"client {what.lines[0][0]}" if what.models == 1 else f"{what.models} clients"
    return (
        f"Personal model{'s' * (what.models > 1)} of {whose}\n\n"
        f"Trained by the method {what.about.get('method')} in {what.rounds} rounds, written by "
        f"scool {__version__}.\nabout.json says for programs what this file says."
    )


def _with_scool(what: Read) -> str:
    about, name = what.about, what.about.get("name")
    which = "" if what.models == 1 else f", {name!r}" if name else f", {about['client']}"
    own = "" if about.get("model") else ", module=YourNetwork"
    text = (
        "With scool (pip install scool); FOLDER is where this file lies:\n\n"
        "    import scool\n"
        f'    model = scool.load_model("FOLDER"{which}{own})\n'
        f"    model.predict(x)  # {_answers(about)}"
    )
    is_class = about.get("classes") is not None
    return text + "\n    model.predict_proba(x)  # and how probable each is" * is_class


def _answers(about: Mapping[str, Any]) -> str:
    """What a model answers with."""
    if about.get("classes") is None:
        return "targets, a line per row of x"
    names = about.get("class_names")
    words = [f"{c} ({names[c]})" if names else str(c) for c in about["classes"]]
    most = ", ".join(words[:10]) + (", ..." if len(words) > 10 else "")
    return f"a class per row of x: {most}"


def _inputs(about: Mapping[str, Any]) -> str:
    """What a model takes."""
    sentences: list[str] = []
    if shape := about.get("input_shape"):
        sentences.append(f"x has the shape (n, {', '.join(map(str, shape))}).")
    if about.get("tokens"):
        sentences.append("It holds whole numbers (tokens).")
    if about.get("mean"):
        sentences.append(
            "It holds images, whole numbers from 0 to 255 (uint8). The model itself divides by "
            f"255, subtracts the mean {about['mean']} and divides by {about['std']}."
        )
    if told := about.get("preprocessing"):
        columns = ", ".join(column["name"] for column in told["columns"])
        sentences.append(
            f"x may also be a pandas table with the columns {columns}. Then categories, missing "
            "cells and scales are dealt with as in training; an array has to hold what comes out "
            "of that, which about.json describes (preprocessing)."
        )
    return "\n".join(sentences) or "The shape of x was not recorded."


def _with_torch(what: Read) -> str:
    shapes = "\n".join(f"    {name} {tuple(t.shape)}" for name, t in sorted(what.tensors.items()))
    return (
        "With PyTorch alone, in a network that has the tensors below:\n\n"
        "    from safetensors.torch import load_file\n"
        f'    network.load_state_dict(load_file("models/{what.file}"))\n\n{shapes}'
    )


def _quality(what: Read) -> str:
    """How good the models are, and whom they learned from."""
    lines = ["On each client's own test samples:", ""]
    for name, scores, sources in what.lines:
        words = ", ".join(f"{n} {v:.4g}" for n, v in scores.items() if v is not None)
        peers = [f"{peer} ({weight:.2g})" for peer, weight in sources.items() if peer != name]
        learned = f"; learned from {', '.join(peers[:5])}" if peers else ""
        lines.append(f"    {name}: {words or 'not tested'}{learned}")
    more = what.models - len(what.lines)
    return "\n".join([*lines, f"    and {more} more in clients.csv"] if more else lines)
