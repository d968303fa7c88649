"""SCooL-attention as naive loops, written from the formulas."""

import math

import numpy as np


def embed_rows(update, phi):
    """{tensor: list of row embeddings} of ONE client; `update` and `phi` hold numpy arrays."""
    norm = math.sqrt(sum(float((x**2).sum()) for x in update.values())) + 1e-10
    out = {}
    for name, x in update.items():
        rows = x.reshape(x.shape[0], -1) / norm
        out[name] = []
        for row in rows:
            inner = np.tanh(phi[f"{name}/in_weight"] @ row + phi[f"{name}/in_bias"])
            out[name].append(np.tanh(phi[f"{name}/out_weight"] @ inner + phi[f"{name}/out_bias"]))
    return out


def score(a, b):
    """f_ij of two clients' row embeddings."""
    total = 0.0
    for name in a:
        total += sum(float(x @ y) for x, y in zip(a[name], b[name], strict=True)) / len(a[name])
    return total / len(a)


def row_softmax(x, columns):
    K = len(x)
    out = np.zeros((K, K))
    for i in range(K):
        keep = [j for j in range(K) if columns[i, j]]
        if keep:
            top = max(x[i, j] for j in keep)
            total = sum(math.exp(x[i, j] - top) for j in keep)
            for j in keep:
                out[i, j] = math.exp(x[i, j] - top) / total
    return out


def elbo(ratio, columns, own, w, p):
    F = own
    for i in range(len(w)):
        for j in range(len(w)):
            if columns[i, j] and w[i, j] > 0:
                F += w[i, j] * (ratio[i, j] + math.log(p[i, j]) - math.log(w[i, j]))
    return F
