"""Importing this does a first training step, which imports for seconds: a fork server does it
once, and its children begin at once."""

import gc

import torch
import zenoh  # noqa: F401

import scool.peer.simulate  # noqa: F401
from scool.algorithms import SCooL
from scool.data.synthetic import synthetic
from scool.learning.local_sgd import LocalSGD
from scool.run.loop import fit

torch.set_num_threads(1)
method = SCooL(sgd=LocalSGD(lr=0.1, batch_size=8))
fit(synthetic(2, 1), "linear", method, rounds=1, device="cpu", verbose=False)
gc.collect()
gc.freeze()  # else the first full collection of each child copies all memory that it shares
