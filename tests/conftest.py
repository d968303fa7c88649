"""Shared set-up: `reference` and `strategies` are importable, torch uses one seed."""

import signal
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
# a shell starts what runs in the background deaf to Ctrl-C, and programs inherit that
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def fixed_global_seed() -> None:
    """The library never draws from the global generator; tests may."""
    torch.manual_seed(0)
