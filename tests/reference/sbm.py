"""SCooL-SBM as naive loops over i, j, g, h, written from the formulas. Slow on purpose."""

import math

import numpy as np
from scipy.special import digamma, gammaln


def entropy(w):
    return -sum(x * math.log(x) for x in (w, 1 - w) if x > 0)


def e(gamma, i, g):
    return digamma(gamma[i, g]) - digamma(sum(gamma[i]))


def prior_logit(omega, B, i, j):
    blocks = range(len(B))
    logit = np.log(B) - np.log(1 - B)
    if i == j:  # E[z_g z_h] = delta_gh Omega_g
        return sum(omega[i, g] * logit[g, g] for g in blocks)
    return sum(omega[i, g] * omega[j, h] * logit[g, h] for g in blocks for h in blocks)


def w_update(ratio, mask, omega, B, T):
    K = len(ratio)
    w = np.zeros((K, K))
    for i in range(K):
        for j in range(K):
            if mask[i, j]:
                w[i, j] = 1 / (1 + math.exp(-(ratio[i, j] + prior_logit(omega, B, i, j)) / T))
    return w


def omega_row(w, mask, omega, gamma, B, i):
    K, M = omega.shape
    s = np.zeros(M)
    for g in range(M):
        s[g] = e(gamma, i, g)
        for j in range(K):
            if j == i:
                continue
            for h in range(M):
                if mask[i, j]:
                    s[g] += omega[j, h] * w[i, j] * math.log(B[g, h])
                    s[g] += omega[j, h] * (1 - w[i, j]) * math.log(1 - B[g, h])
                if mask[j, i]:
                    s[g] += omega[j, h] * w[j, i] * math.log(B[h, g])
                    s[g] += omega[j, h] * (1 - w[j, i]) * math.log(1 - B[h, g])
        if mask[i, i]:
            s[g] += w[i, i] * math.log(B[g, g]) + (1 - w[i, i]) * math.log(1 - B[g, g])
    weights = np.exp(s - s.max())
    return weights / weights.sum()


def B_update(w, mask, omega, pseudo):
    K, M = omega.shape
    B = np.zeros((M, M))
    for g in range(M):
        for h in range(M):
            edges, count = pseudo, 2 * pseudo
            for i in range(K):
                for j in range(K):
                    if not mask[i, j]:
                        continue
                    if i == j:
                        share = omega[i, g] if g == h else 0.0
                    else:
                        share = omega[i, g] * omega[j, h]
                    edges += w[i, j] * share
                    count += share
            B[g, h] = edges / count
    return B


def dirichlet_terms(alpha, gamma):
    K, M = gamma.shape
    F = K * gammaln(sum(alpha)) - K * sum(gammaln(a) for a in alpha)
    for i in range(K):
        F -= gammaln(sum(gamma[i])) - sum(gammaln(c) for c in gamma[i])
        for g in range(M):
            F += (alpha[g] - 1) * e(gamma, i, g) - (gamma[i, g] - 1) * e(gamma, i, g)
    return F


def elbo(ratio, mask, own, w, omega, gamma, alpha, B, T):
    """`own` is the likelihood that always counts."""
    K, M = omega.shape
    F = own + dirichlet_terms(alpha, gamma)
    for i in range(K):
        for g in range(M):
            F += omega[i, g] * e(gamma, i, g)
            F -= omega[i, g] * math.log(omega[i, g]) if omega[i, g] > 0 else 0.0
        for j in range(K):
            if not mask[i, j]:
                continue
            F += w[i, j] * ratio[i, j] + T * entropy(w[i, j])
            for g in range(M):
                for h in range(M):
                    if i == j:
                        share = omega[i, g] if g == h else 0.0
                    else:
                        share = omega[i, g] * omega[j, h]
                    F += share * w[i, j] * math.log(B[g, h])
                    F += share * (1 - w[i, j]) * math.log(1 - B[g, h])
    return F
