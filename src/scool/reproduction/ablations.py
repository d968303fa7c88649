"""What makes the difference: one change at a time, against another row.

Read an entry as: the question (family), the row it is compared with, its name, its title, and the
options it changes. The rows compared with are run and shown beside, they need no entry.
"""

from scool.reproduction.beyond import BEYOND
from scool.reproduction.rows import PRIOR_OFF, TABLE1, Row, change

_SBM, _ATT = "scool-sbm", "scool-attention"
_TEMPERATURES = (0.5, 1.0, 2.0, 4.0, 9.0)
_DITTO_ALL = change(
    "participation",
    "ditto",
    "ditto-all-clients",
    "Ditto, all clients",
    {"participation": 1.0},
    about="100 rounds: as many epochs and bytes",
)

ABLATIONS: tuple[Row, ...] = (
    # Does the block prior matter?
    change("prior", _SBM, "prior-off", "prior off", PRIOR_OFF, about="w = sigma((l - l0) / T)"),
    change(
        "prior",
        _SBM,
        "prior-off-no-null",
        "prior off, no null model",
        {**PRIOR_OFF, "null_loglik": 0.0},
        about="w = sigma(-L / T), to which the released program comes down",
    ),
    *(
        change("prior", _SBM, f"blocks-{m}", f"M = {m} blocks", {"num_blocks": m})
        for m in (2, 5, 10)
    ),
    # What the authors' program computes, against what the paper's model gives.
    change("released", _SBM, "scool-sbm-released", "SBM, released", {}, method=f"{_SBM}-released"),
    change(
        "released",
        _ATT,
        "scool-attention-released",
        "attention, released",
        {},
        method=f"{_ATT}-released",
    ),
    # How many samples a cross loss needs.
    change(
        "cross-losses",
        _SBM,
        "cross-10",
        "one batch of 10 a pair",
        {"cross_samples": 10, "cross_draw": "pair"},
    ),
    change("cross-losses", _SBM, "cross-50", "50 samples", {"cross_samples": 50}),
    change("cross-losses", _SBM, "cross-all", "all samples", {"cross_samples": 0}),
    change(
        "cross-losses",
        _SBM,
        "cross-10-average",
        "one batch of 10 a pair, moving average 0.9",
        {"cross_samples": 10, "cross_draw": "pair", "cross_ema": 0.9},
    ),
    change(
        "cross-losses",
        _SBM,
        "cross-50-average",
        "50 samples, moving average 0.9",
        {"cross_samples": 50, "cross_ema": 0.9},
    ),
    # What explains a client's data where there is no edge, and whether B can be learned.
    change("null-model", _SBM, "null-0", "null 0, B fixed", {"null_loglik": 0.0}),
    change(
        "null-model",
        _SBM,
        "null-0-learned-B",
        "null 0, B learned",
        {"null_loglik": 0.0, "learn_B": True},
        about="expected to collapse: without a null model data argue against every edge",
    ),
    change(
        "null-model",
        _SBM,
        "null-uniform-learned-B",
        "uniform null, B learned",
        {},
        method="scool-sbm-learned",
    ),
    # ReLU on the logits, as in the authors' network; it sets the scale of the losses and so of T.
    *(
        change(
            "relu-logits",
            _SBM,
            f"relu-logits-T-{t:g}",
            f"ReLU on logits, T = {t:g}",
            {"relu_logits": True, "temperature": t},
        )
        for t in (0.5, 1.0, 2.0)
    ),
    change("relu-logits", "local", "local-relu-logits", "local, ReLU", {"relu_logits": True}),
    # The two quirks of the released attention, apart.
    change(
        "attention",
        _ATT,
        "attention-likelihood-target",
        "encoder drawn to the likelihood",
        {"encoder_target": "likelihood"},
    ),
    change("attention", _ATT, "attention-models", "models averaged", {"aggregate": "models"}),
    change(
        "attention",
        _ATT,
        "attention-released-right-sign",
        "released, sign corrected",
        {"compat": "derived"},
        method=f"{_ATT}-released",
        about="also one common encoder step instead of the clients', and peers ranked by w",
    ),
    change(
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
        change(
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
        change(
            "temperature",
            method,
            f"{method}-T-{t:g}",
            f"{method}, T = {t:g}",
            {"temperature": t},
        )
        for method in (_SBM, _ATT)
        for t in _TEMPERATURES
    ),
    # Choices that the paper leaves open for the baselines and for all.
    *(
        change(
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
        change(
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
    change(
        "participation",
        "fedfomo",
        "fedfomo-10-percent",
        "FOMO, 10 % of the clients a round",
        {"participation": 0.1},
        about="1,000 rounds, so that a client has 500 local epochs on average",
        rounds=1000,
    ),
    _DITTO_ALL,
    change(
        "participation",
        "fedavg",
        "fedavg-1000-rounds",
        "FedAvg, 1,000 rounds, average 0.98",
        {"participation": 0.1, "model_average": 0.98},
        about="more rounds and an average; 500 local epochs a client, as in the other rows",
        rounds=1000,
    ),
    *(
        change(
            "weight-decay",
            name,
            f"{name}-weight-decay",
            f"{name}, weight decay 5e-4",
            {"weight_decay": 5e-4},
        )
        for name in ("local", _SBM, _ATT)
    ),
    *BEYOND,
)
