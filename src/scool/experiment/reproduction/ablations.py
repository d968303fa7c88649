"""What makes the difference: one change at a time, against another row.

Read an entry as: the question (family), the row it is compared with, its name, its title, and the
options it changes. The rows compared with are run and shown beside, they need no entry.
"""

from collections.abc import Mapping
from typing import Any

from scool.experiment.reproduction.rows import TABLE1, Row


def _change(
    family: str,
    against: str,
    name: str,
    title: str,
    options: Mapping[str, Any],
    *,
    about: str = "",
    rounds: int = 100,
    method: str = "",
) -> Row:
    return Row(name, title, method or against, about, options, rounds, family, against)


_SBM, _ATT, _DRAWN = "scool-sbm", "scool-attention", "scool-drawn"
_TEMPERATURES = (0.5, 1.0, 2.0, 4.0, 9.0)
_OFF = {"num_blocks": 1, "b_in": 0.5}  # one block, even odds: the block prior says nothing
_MODELS, _TENTH = {"aggregate": "models"}, {"fraction": 0.1}
_NOISE = {"cross_noise": 0.1}
_TABLE = {row.name: row for row in TABLE1}
_BETWEEN = {"slow_momentum": 0.7, "model_average": 0.9}
_SHARE = {**_OFF, **_NOISE, "temperature": 0.5}
_ALL = {"participation": 1.0}
_DITTO_ALL = _change("participation", "ditto", "ditto-all-clients", "Ditto, all clients", _ALL)

ABLATIONS: tuple[Row, ...] = (
    # Does the block prior matter?
    _change("prior", _SBM, "prior-off", "prior off", _OFF, about="w = sigma((l - l0) / T)"),
    _change(
        "prior",
        _SBM,
        "prior-off-no-null",
        "prior off, no null model",
        {**_OFF, "null_loglik": 0.0},
        about="w = sigma(-L / T), to which the released program comes down",
    ),
    *(
        _change("prior", _SBM, f"blocks-{m}", f"M = {m} blocks", {"num_blocks": m})
        for m in (2, 5, 10)
    ),
    # What the authors' program computes, against what the paper's model gives.
    _change("released", _SBM, "scool-sbm-released", "SBM, released", {}, method=f"{_SBM}-released"),
    _change(
        "released",
        _ATT,
        "scool-attention-released",
        "attention, released",
        {},
        method=f"{_ATT}-released",
    ),
    # How many samples a cross loss needs.
    _change(
        "cross-losses",
        _SBM,
        "cross-10",
        "one batch of 10 a pair",
        {"cross_samples": 10, "cross_draw": "pair"},
    ),
    _change("cross-losses", _SBM, "cross-50", "50 samples", {"cross_samples": 50}),
    _change("cross-losses", _SBM, "cross-all", "all samples", {"cross_samples": 0}),
    _change(
        "cross-losses",
        _SBM,
        "cross-10-average",
        "one batch of 10 a pair, moving average 0.9",
        {"cross_samples": 10, "cross_draw": "pair", "cross_ema": 0.9},
    ),
    _change(
        "cross-losses",
        _SBM,
        "cross-50-average",
        "50 samples, moving average 0.9",
        {"cross_samples": 50, "cross_ema": 0.9},
    ),
    # What explains a client's data where there is no edge, and whether B can be learned.
    _change("null-model", _SBM, "null-0", "null 0, B fixed", {"null_loglik": 0.0}),
    _change(
        "null-model",
        _SBM,
        "null-0-learned-B",
        "null 0, B learned",
        {"null_loglik": 0.0, "learn_B": True},
        about="expected to collapse: without a null model data argue against every edge",
    ),
    _change(
        "null-model",
        _SBM,
        "null-uniform-learned-B",
        "uniform null, B learned",
        {},
        method="scool-sbm-learned",
    ),
    # ReLU on the logits, as in the authors' network; it sets the scale of the losses and so of T.
    *(
        _change(
            "relu-logits",
            _SBM,
            f"relu-logits-T-{t:g}",
            f"ReLU on logits, T = {t:g}",
            {"relu_logits": True, "temperature": t},
        )
        for t in (0.5, 1.0, 2.0)
    ),
    _change("relu-logits", "local", "local-relu-logits", "local, ReLU", {"relu_logits": True}),
    # The two quirks of the released attention, apart.
    _change(
        "attention",
        _ATT,
        "attention-likelihood-target",
        "encoder drawn to the likelihood",
        {"encoder_target": "likelihood"},
    ),
    _change("attention", _ATT, "attention-models", "models averaged", _MODELS),
    _change(
        "attention",
        _ATT,
        "attention-released-right-sign",
        "released, sign corrected",
        {"compat": "derived"},
        method=f"{_ATT}-released",
        about="one common encoder step instead of the mean of the clients' steps",
    ),
    _change(
        "attention",
        _ATT,
        "attention-released-right-sign-and-target",
        "released, sign and target corrected",
        {"compat": "derived", "encoder_target": "posterior"},
        method=f"{_ATT}-released",
    ),
    # Every method without the training augmentation.
    *(
        Row(
            f"{row.name}-no-augment",
            f"{row.title}, no augmentation",
            row.method,
            row.about,
            {**row.options, "augment": False},
            row.rounds,
            "augmentation",
            row.name,
        )
        for row in (*TABLE1, _DITTO_ALL)
    ),
    # Fewer or more local epochs a round, 500 in all.
    *(
        _change(
            "local-epochs",
            method,
            f"{method}-epochs-{epochs}",
            f"{method}, {epochs} epoch{'s' * (epochs > 1)} a round",
            {"epochs": epochs},
            rounds=500 // epochs,
        )
        for method in (_SBM, _ATT)
        for epochs in (1, 2, 5, 10)
    ),
    *(
        _change(
            "temperature",
            method,
            f"{method}-T-{t:g}",
            f"{method}, T = {t:g}",
            {"temperature": t},
        )
        for method in (_SBM, _ATT)
        for t in _TEMPERATURES
    ),
    # Beyond the paper: can a learned graph use clients that share some classes, with few peers?
    *(
        _change("beyond", _SBM, f"beyond-{name}", title, options, about=about)
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
        _change(
            "beyond", _SBM, f"beyond-mmsbm-{name}", f"MMSBM, {title}", options, method="scool-mmsbm"
        )
        for name, title, options in (
            ("noise", "label noise 0.1", _NOISE),
            ("noise-models", "label noise 0.1, models averaged", {**_NOISE, **_MODELS}),
        )
    ),
    *(
        _change(
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
    # What makes the drawn peers work, one change at a time.
    *(
        _change("drawn", _DRAWN, f"drawn-{name}", title, options)
        for name, title, options in (
            ("best-peers", "the best peers, for good", {"peers": "best"}),
            ("updates", "updates averaged", {"aggregate": "updates"}),
            ("no-momentum", "no slow momentum", {"slow_momentum": 0.0}),
            ("last-model", "the last model, no average", {"model_average": 0.0}),
            ("T-0.5", "T = 0.5", {"temperature": 0.5}),
            ("anybody", "anybody, whatever w says", {"temperature": 1e6}),
            ("no-noise", "no label noise", {"cross_noise": 0.0}),
            (
                "blocks",
                "block prior of scool-sbm",
                {"num_blocks": 10, "b_in": 0.8, "cross_noise": 0.0},
            ),
        )
    ),
    # The same between rounds for everybody: what slow momentum and averages give other methods.
    *(
        _change(
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
    _change(
        "between-rounds",
        "fedavg",
        "fedavg-all-between-rounds",
        "fedavg of all clients, slow momentum 0.7, average 0.9",
        {"participation": 1.0, **_BETWEEN},
        about="100 rounds: 500 local epochs a client, as in the other rows",
    ),
    # Choices that the paper leaves open for the baselines and for all.
    *(
        _change(
            "topology",
            "dpsgd-5-epochs",
            f"dpsgd-5-epochs-{topology}",
            f"D-PSGD (s = 5 epochs), {topology}",
            {"topology": topology},
            method="dpsgd",
        )
        for topology in ("ring", "bipartite", "generalised-bipartite")
    ),
    *(
        _change(
            "topology",
            row,
            f"{row}-by-groups",
            f"{title}, clients in their order",
            {"shuffle": False},
            method=method,
            about="in the sbm setting that is group by group, so that neighbours share their task",
        )
        for row, title, method in (
            ("dpsgd-5-epochs", "D-PSGD (s = 5 epochs)", "dpsgd"),
            ("spdb-5-epochs", "SPDB (s = 5 epochs)", "spdb"),
        )
    ),
    _change(
        "participation",
        "fedfomo",
        "fedfomo-10-percent",
        "FOMO, 10 % of the clients a round",
        {"participation": 0.1},
        about="1,000 rounds, so that a client has 500 local epochs on average",
        rounds=1000,
    ),
    _DITTO_ALL,
    *(
        _change(
            "weight-decay",
            name,
            f"{name}-weight-decay",
            f"{name}, weight decay 5e-4",
            {"weight_decay": 5e-4},
        )
        for name in ("local", _SBM, _ATT)
    ),
)
