"""Your own data: a list with one entry per client, numpy or torch, of any sizes."""

import numpy as np

import scool

rng = np.random.default_rng(0)
rules = rng.normal(size=(2, 6))  # two groups of clients, each with a rule of its own


def collect(client: int) -> tuple[np.ndarray, np.ndarray]:
    """What one client has: readings and what it calls them."""
    x = rng.normal(size=(int(rng.integers(15, 40)), 6)).astype(np.float32)
    return x, (x @ rules[client % 2] > 0).astype(int)


federation = scool.from_arrays(
    [collect(client) for client in range(12)],
    name="readings",
    groups=[client % 2 for client in range(12)],  # only where you know them: for the graph error
    test_fraction=0.3,
    client_names=[f"site {client}" for client in range(12)],
)
print(federation.describe())

algorithm = scool.SCooL(
    prior=scool.SBM(num_blocks=3),
    sgd=scool.LocalSGD(lr=0.1, batch_size=8),
    fraction=0.5,
)
result = scool.fit(federation, "linear", algorithm, rounds=15)
print(f"accuracy {result.accuracy.mean():.1f} %, graph error {result.summary()['graph_l1']:.2f}")

new_readings = federation.test.x[:3]
print("client 0 says", result.predict(0, new_readings).tolist())
