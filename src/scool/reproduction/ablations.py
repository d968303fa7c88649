"""What makes the difference: one change at a time, against another row.

A family is a question and the row that its changes are compared with; a change is its name, its
title, the options it sets, and perhaps a remark. The rows compared with are run and shown beside,
they need no entry.
"""

from collections.abc import Mapping
from typing import Any

from scool.reproduction.beyond import BEYOND
from scool.reproduction.rows import PRIOR_OFF, TABLE1, Row, change, changes

_SBM, _ATT = "scool-sbm", "scool-attention"
_DPSGD, _SPDB = "dpsgd-5-epochs", "spdb-5-epochs"
_PAIRS = {"cross_samples": 10, "cross_draw": "pair"}
_RIGHT_SIGN = "also one common encoder step instead of the clients', and peers ranked by w"
_IN_ORDER = "in the sbm setting that is group by group, so that neighbours share their task"
_ALL = {"participation": 1.0}
_AVERAGED = {"participation": 0.1, "model_average": 0.98}
_DITTO_ALL = change(
    "participation",
    "ditto",
    ("ditto-all-clients", "Ditto, all clients", _ALL, "100 rounds: as many epochs and bytes"),
)


def _no_augmentation(row: Row) -> Row:
    title, options = f"{row.title}, no augmentation", {**row.options, "augment": False}
    entry = (f"{row.name}-no-augment", title, options, row.about)
    return change("augmentation", row.name, entry, method=row.method, rounds=row.rounds)


def _local_epochs(method: str, epochs: int) -> Row:
    """Fewer or more local epochs a round, 500 in all."""
    title = f"{method}, {epochs} epoch{'s' * (epochs > 1)} a round"
    entry = (f"{method}-epochs-{epochs}", title, {"epochs": epochs})
    return change("local-epochs", method, entry, rounds=500 // epochs)


def _by_groups(row: str, title: str) -> Row:
    entry = (f"{row}-by-groups", f"{title}, clients in their order", {"shuffle": False}, _IN_ORDER)
    return change("topology", row, entry, method=row.partition("-")[0])


def _released(name: str, title: str, options: Mapping[str, Any], about: str = "") -> Row:
    return change("attention", _ATT, (name, title, options, about), method=f"{_ATT}-released")


ABLATIONS: tuple[Row, ...] = (
    # Does the block prior matter?
    *changes(
        "prior",
        _SBM,
        ("prior-off", "prior off", PRIOR_OFF, "w = sigma((l - l0) / T)"),
        (
            "prior-off-no-null",
            "prior off, no null model",
            {**PRIOR_OFF, "null_loglik": 0.0},
            "w = sigma(-L / T), to which the released program comes down",
        ),
        *((f"blocks-{m}", f"M = {m} blocks", {"num_blocks": m}) for m in (2, 5, 10)),
    ),
    # What the authors' program computes, against what the paper's model gives.
    *(
        change("released", row, (f"{row}-released", title, {}), method=f"{row}-released")
        for row, title in ((_SBM, "SBM, released"), (_ATT, "attention, released"))
    ),
    # How many samples a cross loss needs.
    *changes(
        "cross-losses",
        _SBM,
        ("cross-10", "one batch of 10 a pair", _PAIRS),
        ("cross-50", "50 samples", {"cross_samples": 50}),
        ("cross-all", "all samples", {"cross_samples": 0}),
        (
            "cross-10-average",
            "one batch of 10 a pair, moving average 0.9",
            {**_PAIRS, "cross_ema": 0.9},
        ),
        (
            "cross-50-average",
            "50 samples, moving average 0.9",
            {"cross_samples": 50, "cross_ema": 0.9},
        ),
    ),
    # What explains a client's data where there is no edge, and whether B can be learned.
    *changes(
        "null-model",
        _SBM,
        ("null-0", "null 0, B fixed", {"null_loglik": 0.0}),
        (
            "null-0-learned-B",
            "null 0, B learned",
            {"null_loglik": 0.0, "learn_B": True},
            "expected to collapse: without a null model data argue against every edge",
        ),
    ),
    change(
        "null-model",
        _SBM,
        ("null-uniform-learned-B", "uniform null, B learned", {}),
        method="scool-sbm-learned",
    ),
    # ReLU on the logits, as in the authors' network; it sets the scale of the losses and so of T.
    *changes(
        "relu-logits",
        _SBM,
        *(
            (
                f"relu-logits-T-{t:g}",
                f"ReLU on logits, T = {t:g}",
                {"relu_logits": True, "temperature": t},
            )
            for t in (0.5, 1.0, 2.0)
        ),
    ),
    change("relu-logits", "local", ("local-relu-logits", "local, ReLU", {"relu_logits": True})),
    # The two quirks of the released attention, apart.
    *changes(
        "attention",
        _ATT,
        (
            "attention-likelihood-target",
            "encoder drawn to the likelihood",
            {"encoder_target": "likelihood"},
        ),
        ("attention-models", "models averaged", {"aggregate": "models"}),
    ),
    _released(
        "attention-released-right-sign",
        "released, sign corrected",
        {"compat": "derived"},
        _RIGHT_SIGN,
    ),
    _released(
        "attention-released-right-sign-and-target",
        "released, sign and target corrected",
        {"compat": "derived", "encoder_target": "posterior"},
    ),
    # Every method without the training augmentation.
    *(_no_augmentation(row) for row in (*TABLE1, _DITTO_ALL)),
    *(_local_epochs(method, epochs) for method in (_SBM, _ATT) for epochs in (1, 2, 5, 10)),
    *(
        change("temperature", row, (f"{row}-T-{t:g}", f"{row}, T = {t:g}", {"temperature": t}))
        for row in (_SBM, _ATT)
        for t in (0.5, 1.0, 2.0, 4.0, 9.0)
    ),
    # Choices that the paper leaves open for the baselines and for all.
    *changes(
        "topology",
        _DPSGD,
        *(
            (f"{_DPSGD}-{topology}", f"D-PSGD (s = 5 epochs), {topology}", {"topology": topology})
            for topology in ("ring", "bipartite", "generalised-bipartite")
        ),
        method="dpsgd",
    ),
    _by_groups(_DPSGD, "D-PSGD (s = 5 epochs)"),
    _by_groups(_SPDB, "SPDB (s = 5 epochs)"),
    change(
        "participation",
        "fedfomo",
        (
            "fedfomo-10-percent",
            "FOMO, 10 % of the clients a round",
            {"participation": 0.1},
            "1,000 rounds, so that a client has 500 local epochs on average",
        ),
        rounds=1000,
    ),
    _DITTO_ALL,
    change(
        "participation",
        "fedavg",
        (
            "fedavg-1000-rounds",
            "FedAvg, 1,000 rounds, average 0.98",
            _AVERAGED,
            "more rounds and an average; 500 local epochs a client, as in the other rows",
        ),
        rounds=1000,
    ),
    *(
        change(
            "weight-decay",
            row,
            (f"{row}-weight-decay", f"{row}, weight decay 5e-4", {"weight_decay": 5e-4}),
        )
        for row in ("local", _SBM, _ATT)
    ),
    *BEYOND,
)
