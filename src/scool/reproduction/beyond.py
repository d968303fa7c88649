"""Beyond the paper: what could do more than its methods, and what makes it work.

Entries are read as those of `ablations`.
"""

from collections.abc import Mapping
from typing import Any

from scool.reproduction.rows import DRAWN_1_EPOCH, PRIOR_OFF, TABLE1, Row, change

_SBM, _ATT, _DRAWN = "scool-sbm", "scool-attention", "scool-drawn"
_MODELS, _TENTH = {"aggregate": "models"}, {"fraction": 0.1}
_NOISE = {"cross_noise": 0.1}
_SHARE = {**PRIOR_OFF, **_NOISE, "temperature": 0.5}
_TABLE = {row.name: row for row in TABLE1}
_BETWEEN = {"slow_momentum": 0.7, "model_average": 0.9}

_PARTS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("best-peers", "the best peers, for good", {"peers": "best"}),
    ("updates", "updates averaged", {"aggregate": "updates"}),
    ("no-momentum", "no slow momentum", {"slow_momentum": 0.0}),
    ("last-model", "the last model, no average", {"model_average": 0.0}),
    ("T-0.5", "T = 0.5", {"temperature": 0.5}),
    ("anybody", "anybody, whatever w says", {"temperature": 1e6}),
    ("no-noise", "no label noise", {"cross_noise": 0.0}),
    ("blocks", "ten blocks, no label noise", {"num_blocks": 10, "b_in": 0.8, "cross_noise": 0.0}),
)


def _change_1_epoch(
    name: str, title: str, options: Mapping[str, Any], *, about: str = "", rounds: int = 500
) -> Row:
    """A change to drawn peers with one epoch a round."""
    return change(
        "drawn-1-epoch",
        "scool-drawn-1-epoch",
        f"drawn-1-epoch-{name}",
        title,
        {**DRAWN_1_EPOCH, **options},
        about=about,
        method=_DRAWN,
        rounds=rounds,
    )


BEYOND: tuple[Row, ...] = (
    # Can a learned graph use clients that share some classes, with few peers?
    *(
        change("beyond", _SBM, f"beyond-{name}", title, options, about=about)
        for name, title, options, about in (
            ("models", "models averaged", _MODELS, ""),
            ("models-10-percent", "models averaged, 10 % of peers", {**_MODELS, **_TENTH}, ""),
            ("personal-head", "personal head", {"personal": "head"}, ""),
            ("noise", "label noise 0.1", _NOISE, "bounded losses: partial overlap shows in them"),
            ("noise-models", "label noise 0.1, models averaged", {**_NOISE, **_MODELS}, ""),
            ("share", "shares of samples", _SHARE, "w by the share of samples a model understands"),
            ("share-models", "shares of samples, models averaged", {**_SHARE, **_MODELS}, ""),
        )
    ),
    *(
        change(
            "beyond", _SBM, f"beyond-mmsbm-{name}", f"MMSBM, {title}", options, method="scool-mmsbm"
        )
        for name, title, options in (
            ("noise", "label noise 0.1", _NOISE),
            ("noise-models", "label noise 0.1, models averaged", {**_NOISE, **_MODELS}),
        )
    ),
    *(
        change(
            "beyond",
            _SBM,
            f"beyond-truth-{kind}",
            f"true graph, {kind}",
            {"truth": kind},
            method="truth",
            about="a reference that is given the classes; its L1 is to itself",
        )
        for kind in ("overlap", "fraction", "squared")
    ),
    # What makes the drawn peers work, one change at a time, with 5 epochs a round and with one.
    *(change("drawn", _DRAWN, f"drawn-{name}", title, options) for name, title, options in _PARTS),
    *(_change_1_epoch(name, title, options) for name, title, options in _PARTS),
    _change_1_epoch("1-percent", "1 % of peers", {"fraction": 0.01}),
    _change_1_epoch(
        "1000-rounds",
        "1 % of peers, 1,000 rounds",
        {"fraction": 0.01, "model_average": 0.99},
        about="as many epochs as Ditto's two models have; averages over twice as many, too",
        rounds=1000,
    ),
    # The same between rounds for everybody: what slow momentum and averages give other methods.
    *(
        change(
            "between-rounds",
            name,
            f"{name}-between-rounds",
            f"{name}, slow momentum 0.7, average 0.9",
            {**_TABLE[name].options, **_BETWEEN},
            method=_TABLE[name].method,
            rounds=_TABLE[name].rounds,
        )
        for name in ("local", "fedavg", "dpsgd-5-epochs", _SBM, _ATT, "truth")
    ),
    change(
        "between-rounds",
        "fedavg",
        "fedavg-all-between-rounds",
        "fedavg of all clients, slow momentum 0.7, average 0.9",
        {"participation": 1.0, **_BETWEEN},
        about="100 rounds: 500 local epochs a client, as in the other rows",
    ),
)
