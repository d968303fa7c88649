"""What a round costs is what the documentation says, to the byte, for every method of METHODS.

`TRAFFIC` holds the formulas of the pages on the methods, one row a method; a method without a row
fails here. `EPOCHS` holds the passes over the data where they are not simply `epochs`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from scool.algorithms import METHODS
from scool.algorithms.shared.sharing import only, split_names
from scool.data.catalogue import DataConfig
from scool.graph.edges import as_matrix
from scool.graph.mixing import num_kept
from scool.learning.local_sgd import LocalSGD, plan_batches
from scool.run.config import default_run
from scool.run.options import option_names, with_options
from scool.run.prepare import prepare_data
from scool.types import Params
from toys import classification, poisoned, start

SIZES = (8, 8, 8, 8, 8, 8)
K = len(SIZES)
ROUNDS = 3

Cost = tuple[int, int]  # messages, bytes


@dataclass(frozen=True)
class Round:
    """What the formulas are written in."""

    number: int
    algorithm: Any
    state: Any  # after the round
    info: Any
    theta0: Params

    @property
    def d(self) -> int:
        """Bytes of a model."""
        return size(self.theta0)

    @property
    def body(self) -> int:
        """Bytes of the tensors that are shared."""
        return size(only(self.theta0, split_names(self.theta0, self.algorithm.personal).shared))

    @property
    def E(self) -> int:
        """Nonzero weights between different clients."""
        return pairs(as_matrix(self.info["graph"]) != 0)

    @property
    def A(self) -> int:
        """Participants: half of the clients, where the method has the option."""
        return K // 2 if "participation" in option_names(self.algorithm) else K


def size(tree: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tree.values())


def pairs(chosen: Tensor) -> int:
    return int((chosen & ~torch.eye(len(chosen), dtype=torch.bool)).sum())


def add(*costs: Cost) -> Cost:
    return sum(c[0] for c in costs), sum(c[1] for c in costs)


def of(messages: int, bytes_each: int) -> Cost:
    return messages, messages * bytes_each


# ---------------------------------------------------------------------- the formulas


def nothing(r: Round) -> Cost:
    return 0, 0


def server(r: Round) -> Cost:
    """2 |A| models."""
    return of(2 * r.A, r.d)


def server_with_variates(r: Round) -> Cost:
    """2 |A| models, each with a control variate."""
    return of(2 * r.A, 2 * r.d)


def server_body(r: Round) -> Cost:
    """2 |A| bodies."""
    return of(2 * r.A, r.body)


def gossip(r: Round) -> Cost:
    """E models."""
    return of(r.E, r.d)


def gossip_and_meetings(r: Round) -> Cost:
    """The same, and of each meeting a model and a gradient."""
    return add(gossip(r), of(2 * K * r.algorithm.meetings, r.d))


def gossip_body(r: Round) -> Cost:
    """E bodies."""
    return of(r.E, r.body)


def cross_gradients(r: Round) -> Cost:
    """A model there and one back, an edge and direction; who goes on, to everyone."""
    return add(of(2 * r.E, r.d), of(K * (K - 1), 1))


def fetched(r: Round) -> Cost:
    """`fraction` times K models a participant."""
    return of(r.A * num_kept(K, r.algorithm.fraction), r.d)


def select_then_gossip(r: Round) -> Cost:
    """`fraction` times K models a client at first, later those it averages with."""
    return fetched(r) if r.number < r.algorithm.select_rounds else gossip(r)


def search_then_pool(r: Round) -> Cost:
    """Nothing while all learn alone, all models in the first search, later those of the pool."""
    if r.number <= r.algorithm.warmup:
        return of(K * (K - 1) * (r.number == r.algorithm.warmup), r.d)
    return of(pairs(r.state.pool), r.d)


def neighbours_and_strangers(r: Round) -> Cost:
    """The models of `fraction` times K neighbours and of `kappa` others."""
    return of(K * (num_kept(K, r.algorithm.fraction) + r.algorithm.kappa), r.d)


def meta(r: Round) -> Cost:
    """E updates, every embedding to everyone, and the sum of the encoder's gradients."""
    phi = r.state.phi
    u = r.algorithm.encoder.embed(phi, {n: t - r.theta0[n] for n, t in r.state.theta.items()})
    total = 2 * (K - 1) * len(phi), 2 * (K - 1) * size(phi)
    return add(gossip(r), of(K * (K - 1), u[0].numel() * u.element_size()), total)


def clusters(r: Round) -> Cost:
    """A sum of M models, a tensor at a time."""
    return 2 * (K - 1) * len(r.theta0), 2 * (K - 1) * r.algorithm.num_clusters * r.d


def scool(r: Round) -> Cost:
    """P models and P numbers for the cross losses, K (K - 1) rows of them, E updates."""
    seen = as_matrix(r.state.cross_loss).isfinite()  # the pairs measured this round
    P = pairs(seen)
    rows = of(K * (K - 1), 4 * int(seen.sum(dim=1).max()))
    return add(of(P, r.d), of(P, 4), rows, of(r.E, r.d))


def drawn(r: Round) -> Cost:
    """The same; of the losses that are remembered only those of this round's peers travel."""
    graph = as_matrix(r.info["graph"])
    measured = as_matrix(r.state.cross_loss).where(graph > 0, torch.nan)
    return scool(replace(r, state=r.state._replace(cross_loss=measured)))


def attention(r: Round, copies: int = 1) -> Cost:
    """The same, every embedding to everyone, and the sum of the encoder's gradient."""
    u, phi = r.state.graph.u, r.state.graph.phi
    total = 2 * (K - 1) * len(phi), 2 * (K - 1) * copies * size(phi)
    return add(scool(r), of(K * (K - 1), u[0].numel() * u.element_size()), total)


def attention_released(r: Round) -> Cost:
    """The same with a gradient for each client's own copy of the encoder."""
    return attention(r, copies=K)


def kinds_twice(r: Round) -> Cost:
    """What each kind costs by itself, with all samples and without those it is judged by."""
    engine, theta0 = start(prepare_data(classification(SIZES), r.algorithm, seed=3))
    total = 0, 0
    for part in (engine, engine.view("all", whole=True)):
        for kind in r.algorithm.methods(K).values():
            state = kind.init(part, theta0)
            for t in range(r.number + 1):
                part.ledger.close_round()
                state, _ = kind.step(part, state, t)
            spent = part.ledger.close_round()
            total = add(total, (spent.total_messages, spent.total_bytes))
    return total


TRAFFIC: dict[str, Callable[[Round], Cost]] = {
    "local": nothing,
    "fedavg": server,
    "fedavg-ft": server,
    "fedprox": server,
    "scaffold": server_with_variates,
    "ditto": server,
    "per-fedavg": server,
    "apfl": server,
    "fedala": server,
    "pfedme": server,
    "fedamp": server,
    "fedbn": server,  # of a model without layers that normalise
    "fedper": server_body,
    "fedrep": server_body,
    "ifca": clusters,
    "pfedgraph": server,
    "fedfomo": fetched,
    "pens": select_then_gossip,
    "dada": neighbours_and_strangers,
    "cga": cross_gradients,
    "spdb": gossip_body,
    "dfedpgp": gossip_body,
    "dpfl": search_then_pool,
    "l2c": gossip,
    "cobo": gossip_and_meetings,
    "meta-l2c": meta,
    "dpsgd": gossip,
    "truth": gossip,
    "scool": kinds_twice,
    "scool-dirac": gossip,
    "scool-sbm": scool,
    "scool-sbm-learned": scool,
    "scool-drawn": drawn,
    "scool-sbm-released": scool,
    "scool-mmsbm": scool,
    "scool-attention": attention,
    "scool-attention-released": attention_released,
}

EPOCHS: dict[str, Callable[[Any], float]] = {
    # everyone fine-tunes, also who does not take part
    "fedavg-ft": lambda a: a.sgd.epochs + a.finetune_epochs / a.participation,
    "apfl": lambda a: 2 * a.sgd.epochs,  # the common model and the blend
    "fedala": lambda a: a.sgd.epochs + a.weight_epochs,
    # an inner and an outer gradient; everyone makes the common model its own
    "per-fedavg": lambda a: 2 * a.sgd.epochs + 1 / a.participation,
    "ditto": lambda a: 2 * a.sgd.epochs,  # the common and the personal model
    "dfedpgp": lambda a: a.sgd.epochs + a.head_epochs,
    "cobo": lambda a: a.sgd.epochs + a.meetings,  # a gradient of all samples for each
    "fedrep": lambda a: a.sgd.epochs + a.head_epochs,
    # four kinds, one with a head of its own, of judges and on all samples
    "scool": lambda a: 5 * a.sgd.epochs * (1 + sum(SIZES) / sum(n - max(1, n // 5) for n in SIZES)),
    "cga": lambda a: a.sgd.epochs * (1 + a.degree),  # also for the models of the neighbours
}

OPTIONS: dict[str, Any] = {
    "lr": 0.05,
    "epochs": 3,
    "batch_size": 3,
    "participation": 0.5,
    "degree": 2,
    "sparsify_round": 1,
    "fraction": 0.34,  # two peers of six
    "select_rounds": 2,
    "start_epochs": 1,
    "meetings": 2,
    "kappa": 1,
}


def method(name: str) -> Any:
    algorithm = default_run(name, DataConfig()).algorithm
    has = option_names(algorithm)
    return with_options(algorithm, {n: v for n, v in OPTIONS.items() if n in has}, "test")


@pytest.mark.parametrize("name", sorted(METHODS))
def test_messages_and_bytes_are_those_of_the_documentation(name: str) -> None:
    if name not in TRAFFIC:
        pytest.fail(f"write the traffic of {name!r} into its page and into TRAFFIC")
    algorithm = method(name)
    engine, theta0 = start(prepare_data(classification(SIZES), algorithm, seed=3))
    state = algorithm.init(engine, theta0)
    for t in range(ROUNDS):
        state, info = algorithm.step(engine, state, t)
        spent = engine.ledger.close_round()
        expected = TRAFFIC[name](Round(t, algorithm, state, info, theta0))
        assert (spent.total_messages, spent.total_bytes) == expected, f"round {t}: {spent}"


@pytest.mark.parametrize("name", sorted(METHODS))
def test_epochs_are_those_of_the_options(name: str) -> None:
    algorithm = method(name)
    engine, theta0 = start(prepare_data(classification(SIZES), algorithm, seed=3))
    state = algorithm.init(engine, theta0)
    share = 0.5 if "participation" in option_names(algorithm) else 1.0
    for t in range(ROUNDS):
        state, _ = algorithm.step(engine, state, t)
        epochs = engine.ledger.close_round().samples / int(engine.sizes.sum())
        assert epochs == pytest.approx(share * EPOCHS.get(name, lambda a: a.sgd.epochs)(algorithm))


def test_no_row_of_a_method_that_is_gone() -> None:
    assert set(TRAFFIC) | set(EPOCHS) <= set(METHODS)


# ---------------------------------------------------------------------- counting samples


@pytest.mark.parametrize("options", [{"epochs": 2}, {"steps": 1}, {"steps": 5}, {"steps": 7}])
@pytest.mark.parametrize("batch_size", [1, 3, 8, 100])
def test_samples_of_a_round_are_those_of_its_batches(options: Any, batch_size: int) -> None:
    sgd = LocalSGD(batch_size=batch_size, **options)
    sizes = torch.tensor([7, 4, 1, 10, 9])
    mask = torch.arange(10) < sizes[:, None]
    for round in range(5):
        batches = plan_batches(sgd, mask, torch.arange(5), round, seed=0)
        planned = batches.weight.sum(dim=(1, 2)).long()
        assert torch.equal(sgd.samples_per_round(sizes, round), planned)


def test_the_verbs_count_the_samples_of_those_who_take_part() -> None:
    sizes, sgd = (5, 3, 8, 6), LocalSGD(lr=0.1, epochs=2, batch_size=4)
    engine, theta0 = start(poisoned(classification(sizes), 3))
    theta = engine.replicate(theta0)
    counts: list[int] = []

    def count() -> None:
        counts.append(engine.ledger.close_round().samples)

    engine.train(theta, sgd, 0)
    count()
    engine.train(theta, sgd, 0, among=torch.tensor([True, False, True, True]))
    count()
    pairs = torch.tensor([[0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]]).bool()
    engine.train_at(theta, pairs, sgd, 0)  # only model 0 finds a host
    count()
    engine.gradient(theta, "train")
    count()
    engine.gradient(theta, "val")
    count()
    w = torch.zeros(4, 4).double()
    w[0, 0] = w[0, 2] = w[1, 2] = 0.5  # one batch of client 0, two of client 2
    engine.cross_gradient(theta, w, sgd, 0)
    count()
    assert counts == [2 * (5 + 3 + 8), 2 * (5 + 8), 2 * 8, 5 + 3 + 8, 0, 4 + 4 + 4]
