"""A federation as a person wants to see it: in numbers, in a table, in a picture."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scool.data.federation import PARTS, Federation, Part
from scool.errors import need

if TYPE_CHECKING:  # matplotlib is loaded by those who look, so that `import scool` stays light
    from scool.display.style import Picture

MOST_ROWS = 1000
"""Clients whose partition is drawn in a notebook."""


def picture_of(federation: Federation, part: Part) -> "Picture":
    """How many samples of which class each client has; clients of a true group, or with the same
    classes, side by side."""
    from scool.display.matrices import partition_picture
    from scool.display.order import shown_order

    order, by = shown_order(federation.groups, federation.held, federation.num_clients)
    classes = federation.class_names or [str(c) for c in range(federation.num_outputs)]
    counts = federation.counts(part)
    return partition_picture(counts, order, classes, by, federation.name)


def frame_of(federation: Federation) -> Any:
    """A pandas table, one row per client: name, group, samples of each part, classes."""
    pandas = need("pandas", "to_pandas")
    rows: dict[str, Any] = {"client": range(federation.num_clients)}
    if federation.client_names is not None:
        rows["name"] = federation.client_names
    if federation.groups is not None:
        rows["group"] = federation.groups.tolist()
    for part in ("train", "val", "test"):
        rows[f"{part}_samples"] = getattr(federation, part).sizes.tolist()
    if federation.task == "classification":
        names = federation.class_names or tuple(str(c) for c in range(federation.num_outputs))
        counts = federation.counts("train")
        rows |= {f"train_{names[c]}": counts[:, c].tolist() for c in range(counts.shape[1])}
    return pandas.DataFrame(rows).set_index("client")


def html_of(federation: Federation) -> str:
    """The table and the picture that a notebook shows."""
    from scool.display.html import html_table, inline

    lines = [line for line in federation.describe().splitlines() if line]
    table = html_table([(line[:20].strip(), line[20:].strip()) for line in lines])
    if federation.num_clients > MOST_ROWS:
        return table
    words = f"How many training samples of each class each client of {federation.name} has"
    return table + inline(picture_of(federation, "train"), words)


def words_of(federation: "Federation") -> str:
    """A short table of how many samples each client has."""
    outputs = federation.num_outputs
    rows = [
        ("federation", federation.name),
        ("task", f"{federation.task}, {outputs} outputs, input {federation.input_shape}"),
        ("clients", str(federation.num_clients)),
        *((f"{part} samples", _spread(getattr(federation, part).sizes)) for part in PARTS),
    ]
    if federation.task == "classification":
        rows.append(("classes per client", _spread(federation.classes.sum(dim=1))))
    if federation.groups is not None:
        sizes = federation.groups.unique(return_counts=True)[1]
        rows.append(("groups", f"{len(sizes)} of {_spread(sizes)} clients"))
    rows.extend(("note", words) for words in federation.notes)
    return "\n".join(f"{name:<20}{value}" for name, value in rows)


def _spread(numbers: Tensor) -> str:
    low, middle, high = (int(f(numbers)) for f in (torch.min, torch.median, torch.max))
    return str(low) if low == high else f"{low} / {middle} / {high} (min / median / max)"
