"""The rows of the paper's table and of its budget figure, one named run each.

What a row does not say is the recipe of its method (`experiment.recipes`): 100 clients, 100 rounds
of 5 epochs, batch 10, SGD 0.01, weight decay 0 (the authors' scripts; their text says 5e-4), the
augmentation of the authors' program for every method, the accuracy after the last round.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

PRIOR_OFF = {"num_blocks": 1, "b_in": 0.5}
"""One block, even odds: the block prior says nothing."""
DRAWN_1_EPOCH = {"epochs": 1, "fraction": 0.02, "model_average": 0.98}
"""Drawn peers with a round after every epoch: fewer peers in each, and an average over as many
epochs."""
SINGLE_STEPS = 25_000
"""Rounds of one step that are 500 epochs of 500 samples in batches of 10."""


@dataclass(frozen=True)
class Row:
    """One named run: a method, what departs from its recipe, and why."""

    name: str
    """The folder of its records, and what --methods takes."""
    title: str
    """What tables call it."""
    method: str
    """A key of `recipes.METHODS`."""
    about: str = ""
    """The protocol in words, where the recipe does not say it all."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options that depart from the recipe."""
    rounds: int = 100
    family: str = ""
    """Ablations: the question that it answers."""
    against: str = ""
    """The row that it is compared with, seed by seed."""


Entry = tuple[str, str, Mapping[str, Any]] | tuple[str, str, Mapping[str, Any], str]
"""Of a change: its name, its title, the options it sets, and perhaps a remark."""


def change(family: str, against: str, entry: Entry, *, rounds: int = 100, method: str = "") -> Row:
    """A run that differs from the row `against` in some options, to answer the question of its
    family."""
    name, title, options, *remark = entry
    about = remark[0] if remark else ""
    return Row(name, title, method or against, about, options, rounds, family, against)


def changes(family: str, against: str, *entries: Entry, method: str = "") -> list[Row]:
    """Several changes of one family."""
    return [change(family, against, entry, method=method) for entry in entries]


_ONE_STEP = "one step a round, 25,000 rounds = 500 epochs, as many as 100 rounds of 5"

_TABLE1: tuple[Row, ...] = (
    Row("local", "Local SGD", "local"),
    Row(
        "fedavg",
        "FedAvg",
        "fedavg",
        "10 of 100 clients a round, 400 rounds = 2,000 epochs of those who take part, 200 a client "
        "on average (the paper: more than 1,000)",
        {"participation": 0.1},
        rounds=400,
    ),
    Row(
        "fedfomo",
        "FOMO",
        "fedfomo",
        "all clients take part (the paper leaves open whether 10 % do; see the ablation "
        "`participation`); a fifth of the training samples is kept for validation",
    ),
    Row(
        "ditto",
        "Ditto",
        "ditto",
        "10 of 100 clients a round as for FedAvg, 1,000 rounds = 500 local epochs a client on "
        "average; two models are trained, so 1,000 epochs are counted; see the ablation "
        "`participation`",
        {"participation": 0.1},
        rounds=1000,
    ),
    Row(
        "dpsgd-1-step",
        "D-PSGD (s = 1 step)",
        "dpsgd",
        f"{_ONE_STEP}; the published order (cta); group-ring of 10 neighbours (the paper: the best "
        "of four topologies)",
        {"steps": 1, "order": "cta"},
        rounds=SINGLE_STEPS,
    ),
    Row(
        "dpsgd-5-epochs",
        "D-PSGD (s = 5 epochs)",
        "dpsgd",
        "local steps, then average (atc); group-ring of 10 neighbours; see the ablation `topology`",
    ),
    Row(
        "cga-1-step",
        "CGA (s = 1 step)",
        "cga",
        f"{_ONE_STEP}; group-ring of 10 neighbours",
        {"steps": 1},
        rounds=SINGLE_STEPS,
    ),
    Row("cga-5-epochs", "CGA (s = 5 epochs)", "cga", "group-ring of 10 neighbours"),
    Row(
        "spdb-1-step",
        "SPDB (s = 1 step)",
        "spdb",
        f"{_ONE_STEP}; gossip form, cta; group-ring of 10 neighbours",
        {"steps": 1, "order": "cta"},
        rounds=SINGLE_STEPS,
    ),
    Row(
        "spdb-5-epochs",
        "SPDB (s = 5 epochs)",
        "spdb",
        "gossip form, atc; group-ring of 10 neighbours",
    ),
    Row("dada", "Dada", "dada", "our port to networks; the published models are boosted stumps"),
    Row(
        "meta-l2c",
        "meta-L2C",
        "meta-l2c",
        "reconstructed from its abstract and a public port; a fifth of the training samples is "
        "kept for validation",
    ),
    Row("scool-sbm", "SCooL-SBM", "scool-sbm", "as derived, 50 samples a cross loss"),
    Row("scool-attention", "SCooL-attention", "scool-attention", "as derived, 50 samples"),
    Row(
        "scool-drawn",
        "SCooL, drawn peers (s = 5 epochs)",
        "scool-drawn",
        "not in the paper: 10 % of the clients, drawn by w in every round; models averaged, slow "
        "momentum, and each client keeps its moving average",
    ),
    Row(
        "scool-drawn-1-epoch",
        "SCooL, drawn peers (s = 1 epoch)",
        "scool-drawn",
        "not in the paper: the same with a round after every epoch and 2 % of the clients in each",
        DRAWN_1_EPOCH,
        rounds=500,
    ),
    Row("scool-mmsbm", "SCooL-MMSBM", "scool-mmsbm", "not in the paper's table"),
    Row(
        "scool-sbm-released",
        "SCooL-SBM (released)",
        "scool-sbm-released",
        "what the authors' program computes; beside it what they state for it",
    ),
    Row(
        "scool-attention-released",
        "SCooL-attention (released)",
        "scool-attention-released",
        "what the authors' program computes; beside it what they state for it",
    ),
    Row("truth", "True graph", "truth", "a reference: mixes by `same class set`, which is given"),
)

TABLE1: tuple[Row, ...] = tuple(
    replace(row, against="" if row.name == "scool-sbm" else "scool-sbm") for row in _TABLE1
)

BUDGETS = (2, 5, 8, 10)
"""Percent of the clients that a client talks to."""


def _budget(percent: int) -> tuple[Row, ...]:
    names = {"sbm": "SCooL-SBM", "attention": "SCooL-attention", "drawn": "SCooL, drawn peers"}
    fraction = {"fraction": percent / 100}
    # A group-ring has an even number of neighbours: 5 % becomes 6 of 100.
    degree = percent + percent % 2
    about = f"5 epochs a round, group-ring of {degree} neighbours"
    title = f"D-PSGD, {percent} %"
    return (
        *(
            Row(f"scool-{n}-{percent}-percent", f"{words}, {percent} %", f"scool-{n}", "", fraction)
            for n, words in names.items()
        ),
        Row(f"dpsgd-{percent}-percent", title, "dpsgd", about, {"degree": degree}),
    )


BUDGET: tuple[Row, ...] = tuple(row for percent in BUDGETS for row in _budget(percent))
GRAPHS: tuple[Row, ...] = tuple(r for r in TABLE1 if r.name in ("scool-sbm", "scool-attention"))
