"""SCooL-SBM of the authors' program as naive loops, written from its description."""

import math

import numpy as np
from scipy.special import digamma

SMALL = 1e-6


def w_update(log_lik, omega, B, T):
    K, M = omega.shape
    w = np.zeros((K, K))
    for i in range(K):
        for j in range(K):  # oneself included, like any other
            x = log_lik[i, j]
            for g in range(M):
                for h in range(M):
                    logit = math.log(B[g, h] + SMALL) - math.log(1 - B[g, h] + SMALL)
                    x += omega[i, g] * omega[j, h] * logit
            w[i, j] = 1 / (1 + math.exp(-x / T))
    return w


def omega_row(w, omega, gamma, B, i):
    K, M = omega.shape
    weights = np.zeros(M)
    for g in range(M):
        s = digamma(gamma[i, g]) - digamma(sum(gamma[i]))
        for j in range(K):
            if j == i:
                continue
            for h in range(M):
                s += omega[j, h] * w[i, j] * math.log(B[g, h] + SMALL)
                s += omega[j, h] * (1 - w[i, j]) * math.log(1 - B[g, h] + SMALL)
                s += omega[j, h] * w[j, i] * math.log(B[h, g] + SMALL)
                s += omega[j, h] * (1 - w[j, i]) * math.log(1 - B[h, g] + SMALL)
        weights[g] = math.exp(s)  # the largest is not subtracted
    return weights / (sum(weights) + SMALL)


def two_sweeps(log_lik, alpha, B, T, gamma, omega, orders):
    """w at the start of the second sweep, Omega at its end; `orders` has one order a sweep."""
    gamma, omega = gamma.copy(), omega.copy()
    first, second = orders
    w = w_update(log_lik, omega, B, T)
    for i in first:
        omega[i] = omega_row(w, omega, gamma, B, i)
        gamma[i] = alpha + omega[i]
    w = w_update(log_lik, omega, B, T)
    for i in second:
        omega[i] = omega_row(w, omega, gamma, B, i)
        gamma[i] = alpha + omega[i]
    return w, omega
