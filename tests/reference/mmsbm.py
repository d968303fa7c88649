"""SCooL-MMSBM as naive loops over i, j, g, h, written from the formulas. P sends, Q receives."""

import math

import numpy as np

from reference.sbm import dirichlet_terms, e, entropy


def softmax(s):
    weights = np.exp(s - s.max())
    return weights / weights.sum()


def w_update(ratio, mask, P, Q, B, T):
    K, M = len(ratio), len(B)
    w = np.zeros((K, K))
    for i in range(K):
        for j in range(K):
            if mask[i, j]:
                x = ratio[i, j]
                for g in range(M):
                    for h in range(M):
                        x += P[i, j, g] * Q[i, j, h] * math.log(B[g, h] / (1 - B[g, h]))
                w[i, j] = 1 / (1 + math.exp(-x / T))
    return w


def _block(w, B, i, j, g, h):
    return w[i, j] * math.log(B[g, h]) + (1 - w[i, j]) * math.log(1 - B[g, h])


def P_update(w, mask, Q, gamma, B):
    K, M = gamma.shape
    P = np.zeros((K, K, M))
    for i in range(K):
        for j in range(K):
            if mask[i, j]:
                s = [
                    sum(Q[i, j, h] * _block(w, B, i, j, g, h) for h in range(M)) + e(gamma, i, g)
                    for g in range(M)
                ]
                P[i, j] = softmax(np.array(s))
    return P


def Q_update(w, mask, P, gamma, B):
    K, M = gamma.shape
    Q = np.zeros((K, K, M))
    for i in range(K):
        for j in range(K):
            if mask[i, j]:
                s = [
                    sum(P[i, j, g] * _block(w, B, i, j, g, h) for g in range(M)) + e(gamma, j, h)
                    for h in range(M)
                ]
                Q[i, j] = softmax(np.array(s))
    return Q


def gamma_update(alpha, mask, P, Q):
    K, M = len(mask), len(alpha)
    gamma = np.zeros((K, M))
    for i in range(K):
        for g in range(M):
            gamma[i, g] = alpha[g]
            for j in range(K):
                if mask[i, j]:
                    gamma[i, g] += P[i, j, g]
                if mask[j, i]:
                    gamma[i, g] += Q[j, i, g]
    return gamma


def B_update(w, mask, P, Q, pseudo):
    K, M = len(w), P.shape[2]
    B = np.zeros((M, M))
    for g in range(M):
        for h in range(M):
            edges, count = pseudo, 2 * pseudo
            for i in range(K):
                for j in range(K):
                    if mask[i, j]:
                        edges += w[i, j] * P[i, j, g] * Q[i, j, h]
                        count += P[i, j, g] * Q[i, j, h]
            B[g, h] = edges / count
    return B


def elbo(ratio, mask, own, w, P, Q, gamma, alpha, B, T):
    K, M = gamma.shape
    F = own + dirichlet_terms(alpha, gamma)
    for i in range(K):
        for j in range(K):
            if not mask[i, j]:
                continue
            F += w[i, j] * ratio[i, j] + T * entropy(w[i, j])
            for g in range(M):
                F += P[i, j, g] * e(gamma, i, g) + Q[i, j, g] * e(gamma, j, g)
                F -= P[i, j, g] * math.log(P[i, j, g]) + Q[i, j, g] * math.log(Q[i, j, g])
                for h in range(M):
                    F += P[i, j, g] * Q[i, j, h] * _block(w, B, i, j, g, h)
    return F
