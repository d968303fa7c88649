"""The same clients, batches and first model under every prior of the cooperation graph."""

import scool

federation = scool.digits(seed=0)
sgd = scool.LocalSGD(lr=0.2, batch_size=8)

methods = {
    "local": scool.LocalOnly(sgd=sgd),
    "truth": scool.Truth(sgd=sgd),  # the reference: mixes by the planted groups
}
for prior in (scool.Dirac(), scool.SBM(), scool.Attention(), scool.MMSBM()):
    name = type(prior).__name__
    methods[name] = scool.SCooL(prior=prior, sgd=sgd, fraction=0.225)

print(f"{'method':<10} {'accuracy':>8} {'graph L1':>8} {'ARI':>5} {'MB':>6}")
for name, algorithm in methods.items():
    line = scool.fit(federation, "mlp", algorithm, rounds=15, method=name).summary()
    print(
        f"{name:<10} {line['accuracy_mean']:>8.1f} {line['graph_l1']:>8.3f} "
        f"{line['graph_ari']:>5.2f} {line['bytes_sent'] / 1e6:>6.0f}"
    )
