"""Forty clients, four groups that name the digits differently: who should learn from whom?"""

import scool

federation = scool.digits(seed=0)  # 40 clients of 24 real 8x8 digits each
sgd = scool.LocalSGD(lr=0.2, batch_size=8)

alone = scool.fit(federation, "mlp", scool.LocalOnly(sgd=sgd), rounds=15)
scool_sbm = scool.SCooL(prior=scool.SBM(), sgd=sgd, fraction=0.225)
together = scool.fit(federation, "mlp", scool_sbm, rounds=15)

print(f"alone     {alone.accuracy.mean():.1f} % test accuracy")
print(f"together  {together.accuracy.mean():.1f} %")

# row i of the graph is whom client i learned from; client i is in group i % 4
peers = together.graph[0].topk(10).indices.sort().values
print("client 0 learned from", peers.tolist())
print("sent:", f"{together.bytes_sent / 1e6:.0f} MB in {together.messages:,} messages")
