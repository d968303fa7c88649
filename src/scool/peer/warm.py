"""Importing this does a first training step, which imports for seconds: a fork server does it
once, and its children begin at once."""

import torch
import zenoh  # noqa: F401

import scool
import scool.peer.simulate

torch.set_num_threads(1)
scool.fit(scool.synthetic(2, 1), "linear", scool.SCooL(), rounds=1, device="cpu", verbose=False)
