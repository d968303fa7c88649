"""The examples in docstrings are run."""

import doctest
import importlib
import pkgutil

import pytest

import scool

MODULES = sorted(m.name for m in pkgutil.walk_packages(scool.__path__, "scool."))
# Triton comes with the CUDA builds of torch; its kernels are tested where it can be had.
LEFT_OUT = ("scool.__main__", "scool.engine.kernels")
MODULES = ["scool", *(name for name in MODULES if not name.startswith(LEFT_OUT))]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module(name: str) -> None:
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module)
    assert failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [
        t for name in MODULES for t in finder.find(importlib.import_module(name)) if t.examples
    ]
    assert len(found) >= 20
