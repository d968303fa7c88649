"""Importing this does a first training step, which imports for seconds: a fork server does it
once, and its children begin at once."""

import torch
import zenoh  # noqa: F401

import scool.peer.simulate  # noqa: F401
from scool.algorithms import SCooL
from scool.data.synthetic import synthetic
from scool.run.loop import fit

torch.set_num_threads(1)
fit(synthetic(2, 1), "linear", SCooL(), rounds=1, device="cpu", verbose=False)
