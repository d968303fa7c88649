"""What a process of an owner does, and everything it imports: a fork server loads this once."""

import contextlib
import io
import os
import sys

import zenoh  # noqa: F401

import scool
import scool.peer.node
from scool.cli.main import run_command
from scool.run.loop import fit
from toys import classification


def take_part(folder: str, errors: str) -> None:
    """`scool peer run` as a person starts it, in this process; what it says goes to a file."""
    with open(errors, "a") as file, contextlib.redirect_stderr(file):
        with contextlib.redirect_stdout(io.StringIO()):
            code = run_command(["peer", "run", folder])
        file.flush()
        os._exit(code)


if "pytest" not in sys.modules:  # the first training step imports for seconds
    fit(classification(), "linear", scool.SCooL(), rounds=1, device="cpu")
