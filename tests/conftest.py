"""Shared set-up: `reference` and `strategies` are importable, torch uses one seed."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def fixed_global_seed() -> None:
    """The library never draws from the global generator; tests may."""
    torch.manual_seed(0)
