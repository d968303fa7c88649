"""Not only classes: squared error on a federation of clients with different linear teachers."""

import scool

federation = scool.synthetic(
    num_clients=12, groups=3, samples_per_client=12, task="regression", unequal=True, seed=0
)
print(federation.describe())

sgd = scool.LocalSGD(lr=0.02, batch_size=8)
methods = {
    "alone": scool.LocalOnly(sgd=sgd),
    "SCooL": scool.SCooL(prior=scool.SBM(num_blocks=4), sgd=sgd, fraction=0.25),
}
for name, algorithm in methods.items():
    result = scool.fit(federation, "linear", algorithm, rounds=20)
    # for regression a client's score is R^2 on its own test samples
    print(f"{name}: R2 {result.score.mean():.3f}, worst client {result.score.min():.3f}")
