"""D-PSGD with one's own matrix, and with one step a round."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from reference.local_steps import local_steps, size_of
from scool.algorithms import DPSGD, LocalOnly
from scool.cli.resume import rerun, resume
from scool.cli.run import run
from scool.data.catalogue import DataConfig
from scool.errors import ConfigError
from scool.graph.topology import TOPOLOGIES, mixing_matrix
from scool.learning.local_sgd import LocalSGD
from scool.run.config import RunConfig, default_run
from scool.run.options import with_options
from toys import (
    SIZES,
    assert_trees_close,
    assert_trees_equal,
    classification,
    one,
    scattered,
    start,
    tanh_net,
)

K = len(SIZES)
OWN = torch.tensor(
    [[0.5, 0.3, 0.2, 0.0], [0.3, 0.7, 0.0, 0.0], [0.2, 0.0, 0.5, 0.3], [0.0, 0.0, 0.3, 0.7]]
).double()


@pytest.mark.parametrize("order", ["cta", "atc"])
@pytest.mark.parametrize("steps", [0, 1])
def test_by_hand(order: str, steps: int) -> None:
    """With one step, cta is the published sum_j w_ij theta_j - lr * gradient."""
    sgd = LocalSGD(lr=0.1, epochs=2, steps=steps, batch_size=3)
    federation, module = classification(), tanh_net()
    engine, theta0 = start(federation, module)
    method = DPSGD(sgd=sgd, weights=OWN, order=order)  # type: ignore[arg-type]
    state = method.init(engine, theta0)._replace(theta=scattered(engine, theta0))
    models = [one(state.theta, i) for i in range(K)]
    state, info = method.step(engine, state, 1)
    half = [local_steps(federation, module, m, i, sgd, 1) for i, m in enumerate(models)]
    for i in range(K):
        for n in theta0:
            mixed = sum(OWN[i, j] * (models if order == "cta" else half)[j][n] for j in range(K))
            change = half[i][n] - models[i][n] if order == "cta" else 0
            torch.testing.assert_close(state.theta[n][i], mixed + change, rtol=0, atol=1e-12)
    assert torch.equal(info["graph"], OWN)
    edges = 6  # three pairs, both directions
    assert engine.ledger.messages == {"mix": edges}
    assert engine.ledger.total_bytes == edges * size_of(state.theta)


@pytest.mark.parametrize("order", ["cta", "atc"])
def test_the_identity_is_local_sgd(order: str) -> None:
    sgd = LocalSGD(lr=0.1, epochs=2, batch_size=3)
    engine, theta0 = start(classification())
    method = DPSGD(sgd=sgd, topology="identity", order=order)  # type: ignore[arg-type]
    a, b = method.init(engine, theta0), LocalOnly(sgd=sgd).init(engine, theta0)
    for t in range(2):
        a, b = method.step(engine, a, t)[0], LocalOnly(sgd=sgd).step(engine, b, t)[0]
    assert_trees_close(a.theta, b.theta)
    assert engine.ledger.total_messages == 0


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_one_step_a_round_on_every_topology(topology: str) -> None:
    engine, theta0 = start(classification((3,) * 9))
    method = DPSGD(sgd=LocalSGD(lr=0.1, steps=1), topology=topology, degree=2)
    state = method.init(engine, theta0)
    for t in range(2):
        state, info = method.step(engine, state, t)
    assert torch.equal(info["graph"], mixing_matrix(topology, 9, degree=2, seed=engine.seed))
    edges = int((info["graph"].clone().fill_diagonal_(0) != 0).sum())
    assert engine.ledger.total_messages == 2 * edges


def write(folder: Path, kind: str, w: Tensor) -> str:
    path = folder / f"w{kind}"
    if kind == ".npy":
        np.save(path, w.numpy())
    else:
        between = "," if kind == ".csv" else "  "
        path.write_text("\n".join(between.join(map(str, row)) for row in w.tolist()) + "\n\n")
    return str(path)


@pytest.mark.parametrize("kind", [".npy", ".csv", ".txt"])
def test_a_matrix_from_a_file_is_the_same_as_from_python(kind: str, tmp_path: Path) -> None:
    engine, theta0 = start(classification())
    path = write(tmp_path, kind, OWN)
    found = DPSGD(matrix=path).init(engine, theta0)
    assert torch.equal(found.w, OWN) and found.w.dtype == torch.float64
    states = [
        method.step(engine, method.init(engine, theta0), 0)[0]
        for method in (DPSGD(matrix=path), DPSGD(weights=OWN.float().double()), DPSGD(weights=OWN))
    ]
    assert_trees_equal(states[0].theta, states[2].theta)
    assert_trees_close(states[1].theta, states[2].theta, 1e-6)


BAD = {
    "3 rows for 4 clients": torch.full((3, 3), 1 / 3),
    "square": OWN[:3],
    "symmetric": (torch.eye(4) + torch.eye(4).roll(1, dims=1)) / 2,
    "sums to": OWN * 0.9,
    "connected": torch.kron(torch.eye(2), torch.full((2, 2), 0.5)),
    "negative": torch.eye(4) * 2 - 0.25,
    "non-finite": OWN * torch.nan,
}


@pytest.mark.parametrize("kind", [".npy", ".csv", "tensor"])
@pytest.mark.parametrize("word", BAD)
def test_a_matrix_that_cannot_mix_is_refused(word: str, kind: str, tmp_path: Path) -> None:
    engine, theta0 = start(classification())
    w = BAD[word]
    file = "" if kind == "tensor" else write(tmp_path, kind, w)
    with pytest.raises(ConfigError, match=word):
        (DPSGD(matrix=file) if file else DPSGD(weights=w)).init(engine, theta0)


def test_a_file_that_is_no_matrix_is_refused(tmp_path: Path) -> None:
    engine, theta0 = start(classification())
    contents = {"words.csv": "a,b\nc,d", "ragged.txt": "1 0\n1", "broken.npy": "1,2"}
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    np.save(tmp_path / "texts.npy", np.array([["1", "0"]]))
    (tmp_path / "image.csv").write_bytes(b"\xff\xfe\x00")
    for name in (*contents, "texts.npy", "image.csv"):
        with pytest.raises(ConfigError, match="not a table of numbers"):
            DPSGD(matrix=str(tmp_path / name)).init(engine, theta0)
    with pytest.raises(ConfigError, match=r"absent.csv.*No such file"):
        DPSGD(matrix=str(tmp_path / "absent.csv")).init(engine, theta0)
    with pytest.raises(ConfigError, match=r"\.npy, \.csv or \.txt"):
        DPSGD(matrix="w.json").init(engine, theta0)


def test_impossible_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="both given"):
        DPSGD(matrix="w.npy", weights=OWN)
    with pytest.raises(ConfigError, match="did you mean 'ring'"):
        DPSGD(topology="rinf")
    with pytest.raises(ConfigError, match="degree"):
        DPSGD(degree=0)


def test_the_options_survive_a_record() -> None:
    config = default_run("dpsgd", DataConfig())
    assert with_options(config.algorithm, {"matrix": "w.csv"}, "test").matrix == "w.csv"
    own = RunConfig("dpsgd", DPSGD(weights=OWN), config.settings)
    found = RunConfig.from_dict(json.loads(json.dumps(own.to_dict())))
    assert isinstance(found.algorithm, DPSGD) and found.algorithm.weights is not None
    assert torch.equal(found.algorithm.weights, OWN)


def test_the_command_line_takes_a_matrix_and_single_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, ".csv", mixing_matrix("ring", 6))
    words = f"dpsgd --matrix {path} --steps 1 --rounds 3 --clients 6 --groups 2 --device cpu --json"
    assert run([*words.split(), "--quiet", "--out", str(tmp_path / "run")]) == 0
    assert json.loads(capsys.readouterr().out)["messages"] == 3 * 12
    Path(path).unlink()  # the record holds the matrix: what becomes of the file does not matter
    done, again = str(tmp_path / "run"), str(tmp_path / "again")
    assert rerun([done, "--out", again, "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["messages"] == 3 * 12
    assert resume([done, "--json", "--quiet"]) == 0
    write(tmp_path, ".csv", mixing_matrix("ring", 6))
    with pytest.raises(ConfigError, match="6 rows for 8 clients"):
        run(
            [
                *words.replace("--clients 6", "--clients 8").split(),
                "--quiet",
                "--out",
                str(tmp_path / "other"),
            ]
        )
