"""Words for the tests that run commands in this process."""

import json
import sys
import warnings
from typing import Any

import pytest

from scool.cli.main import main

KEYS = ["method", "accuracy_mean", "accuracy_std", "rounds", "seconds", "graph_l1", "graph_ari"]
KEYS += ["bytes_sent", "messages", "run_dir"]
SMALL = ["--clients", "6", "--groups", "2", "--epochs", "1", "--device", "cpu", "--quiet"]


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The JSON objects that a command has printed."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def code_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of `scool ARGUMENTS`, through `main`."""
    monkeypatch.setattr(sys, "argv", ["scool", *arguments])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("warnings.formatwarning", warnings.formatwarning)  # put back afterwards
    with pytest.raises(SystemExit) as stopped:
        main()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code
