"""Beyond the paper: what could do more than its methods, and what makes it work.

Entries are read as those of `ablations`.
"""

from scool.reproduction.rows import DRAWN_1_EPOCH, PRIOR_OFF, TABLE1, Entry, Row, change, changes

_SBM, _ATT, _DRAWN = "scool-sbm", "scool-attention", "scool-drawn"
_MODELS, _TENTH = {"aggregate": "models"}, {"fraction": 0.1}
_NOISE = {"cross_noise": 0.1}
_SHARE = {**PRIOR_OFF, **_NOISE, "temperature": 0.5}
_TABLE = {row.name: row for row in TABLE1}
_BETWEEN = {"slow_momentum": 0.7, "model_average": 0.9}

_PARTS: tuple[Entry, ...] = (
    ("best-peers", "the best peers, for good", {"peers": "best"}),
    ("updates", "updates averaged", {"aggregate": "updates"}),
    ("no-momentum", "no slow momentum", {"slow_momentum": 0.0}),
    ("last-model", "the last model, no average", {"model_average": 0.0}),
    ("T-0.5", "T = 0.5", {"temperature": 0.5}),
    ("anybody", "anybody, whatever w says", {"temperature": 1e6}),
    ("no-noise", "no label noise", {"cross_noise": 0.0}),
    ("blocks", "ten blocks, no label noise", {"num_blocks": 10, "b_in": 0.8, "cross_noise": 0.0}),
)


def _one_epoch(entry: Entry, rounds: int = 500) -> Row:
    """A change to drawn peers with one epoch a round."""
    name, title, options, *remark = entry
    about = remark[0] if remark else ""
    whole = (f"drawn-1-epoch-{name}", title, {**DRAWN_1_EPOCH, **options}, about)
    return change("drawn-1-epoch", f"{_DRAWN}-1-epoch", whole, method=_DRAWN, rounds=rounds)


def _between_rounds(name: str) -> Row:
    """The same between rounds for everybody: what slow momentum and averages give others."""
    row = _TABLE[name]
    title = f"{name}, slow momentum 0.7, average 0.9"
    entry = (f"{name}-between-rounds", title, {**row.options, **_BETWEEN})
    return change("between-rounds", name, entry, method=row.method, rounds=row.rounds)


_LONG = "as many epochs as Ditto's two models have; averages over twice as many, too"
BEYOND: tuple[Row, ...] = (
    # Can a learned graph use clients that share some classes, with few peers?
    *changes(
        "beyond",
        _SBM,
        ("beyond-models", "models averaged", _MODELS),
        ("beyond-models-10-percent", "models averaged, 10 % of peers", {**_MODELS, **_TENTH}),
        ("beyond-personal-head", "personal head", {"personal": "head"}),
        (
            "beyond-noise",
            "label noise 0.1",
            _NOISE,
            "bounded losses: partial overlap shows in them",
        ),
        ("beyond-noise-models", "label noise 0.1, models averaged", {**_NOISE, **_MODELS}),
        (
            "beyond-share",
            "shares of samples",
            _SHARE,
            "w by the share of samples a model understands",
        ),
        ("beyond-share-models", "shares of samples, models averaged", {**_SHARE, **_MODELS}),
    ),
    *changes(
        "beyond",
        _SBM,
        ("beyond-mmsbm-noise", "MMSBM, label noise 0.1", _NOISE),
        (
            "beyond-mmsbm-noise-models",
            "MMSBM, label noise 0.1, models averaged",
            {**_NOISE, **_MODELS},
        ),
        method="scool-mmsbm",
    ),
    *changes(
        "beyond",
        _SBM,
        *(
            (
                f"beyond-truth-{kind}",
                f"true graph, {kind}",
                {"truth": kind},
                "a reference that is given the classes; its L1 is to itself",
            )
            for kind in ("overlap", "fraction", "squared")
        ),
        method="truth",
    ),
    # What makes the drawn peers work, one change at a time, with 5 epochs a round and with one.
    *changes("drawn", _DRAWN, *((f"drawn-{part[0]}", part[1], part[2]) for part in _PARTS)),
    *map(_one_epoch, _PARTS),
    _one_epoch(("1-percent", "1 % of peers", {"fraction": 0.01})),
    _one_epoch(
        (
            "1000-rounds",
            "1 % of peers, 1,000 rounds",
            {"fraction": 0.01, "model_average": 0.99},
            _LONG,
        ),
        rounds=1000,
    ),
    *map(_between_rounds, ("local", "fedavg", "dpsgd-5-epochs", _SBM, _ATT, "truth")),
    change(
        "between-rounds",
        "fedavg",
        (
            "fedavg-all-between-rounds",
            "fedavg of all clients, slow momentum 0.7, average 0.9",
            {"participation": 1.0, **_BETWEEN},
            "100 rounds: 500 local epochs a client, as in the other rows",
        ),
    ),
)
