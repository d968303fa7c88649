"""Nothing that lies in the working directory is executed, e.g. in a run folder from a stranger."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scool.isolation import HOME, leave_working_directory, python_command

SCOOL = str(Path(sys.executable).with_name("scool"))
NAMES = ("torch", "json", "numpy", "subprocess", "sitecustomize", "usercustomize", "scool")
STYLE = "text.usetex: True\ntext.latex.preamble: \\undefined\n"
TINY = "--dataset synthetic --clients 4 --rounds 1 --model linear --device cpu --quiet".split()


def plant(folder: Path, names: tuple[str, ...] = NAMES) -> Path:
    """Modules that leave a mark when they are executed, and a style with LaTeX that fails."""
    folder.mkdir(exist_ok=True)
    for name in names:
        mark = str(folder / f"{name}.executed")
        (folder / f"{name}.py").write_text(f"open({mark!r}, 'w').close()\nraise SystemExit(9)\n")
    (folder / "matplotlibrc").write_text(STYLE)
    return folder


def unharmed(folder: Path, *words: str) -> str:
    """What a command prints that is started in the folder: it succeeds, and leaves no mark."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert not [mark.name for mark in folder.glob("*.executed")]
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_folder_of_a_stranger_is_resumed_and_repeated_by_two_ranks(tmp_path: Path) -> None:
    words = ("run", "dpsgd", *TINY, "--ranks", "2", "--out", "run")
    unharmed(plant(tmp_path / "start"), SCOOL, *words)
    folder = plant(tmp_path / "start" / "run")
    unharmed(folder, SCOOL, "resume", ".", "--ranks", "2", "--quiet")
    unharmed(folder, SCOOL, "rerun", ".", "--ranks", "2", "--quiet", "--out", "again")
    assert (folder / "again" / "run.json").is_file()


def test_a_comparison_with_its_figures(tmp_path: Path) -> None:
    """A text that is drawn in the style of the folder calls LaTeX, which fails."""
    folder = plant(tmp_path / "here")
    words = ("compare", "--methods", "local,dpsgd", *TINY, "--ranks", "2", "--out", "both")
    unharmed(folder, SCOOL, *words)
    assert (folder / "both" / "accuracy.png").is_file()
    assert (folder / "both" / "graphs.png").is_file()


def test_a_benchmark_of_two_ranks(tmp_path: Path) -> None:
    words = ("bench", "scale-out", "--clients", "4", "--ranks", "2", "--json")
    assert '"ranks": 2' in unharmed(plant(tmp_path), SCOOL, *words)


def test_python_m_scool(tmp_path: Path) -> None:
    """Python itself looks for the package in the working directory, unless `-P` forbids it."""
    folder = plant(tmp_path / "here", tuple(name for name in NAMES if name != "scool"))
    unharmed(folder, sys.executable, "-um", "scool", "run", "local", *TINY, "--out", "run")
    folder = plant(tmp_path / "safe")
    assert "scool" in unharmed(folder, sys.executable, "-P", "-m", "scool", "--version")


def test_scool_that_lies_in_the_working_directory_can_start_ranks() -> None:
    """As in src/ of a clone, where it need not be installed."""
    paths = ["", *(path for path in sys.path if path and Path(path) != Path(HOME))]
    child = "import importlib.util; assert importlib.util.find_spec('scool')"
    program = (
        f"import sys; sys.path[:] = {paths}; import subprocess, scool.isolation; "
        f"subprocess.run(scool.isolation.python_command({child!r}), check=True)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=HOME, check=True)


def test_the_folder_of_a_program_that_uses_scool_stays(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("import scool\n")
    (tmp_path / "mine" / "__main__.py").write_text("import helper\nprint(helper.WORD)\n")
    (tmp_path / "helper.py").write_text("WORD = 'helped'\n")
    assert unharmed(tmp_path, sys.executable, "-m", "mine", "scool") == "helped\n"


@pytest.mark.parametrize(
    "start, leaves",
    [
        ("-m scool", True),
        ("-u -m scool", True),
        ("-um scool", True),
        ("-mscool", True),
        ("-umscool", True),
        ("-m scool.cli.main", True),
        ("-m mine", False),
        ("-m myscool", False),
        ("-mxmscool", False),
        ("-m scoolish", False),
    ],
)
def test_which_programs_leave_the_working_directory(
    start: str, leaves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = ["run", "-m", "scool"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), "elsewhere"])
    monkeypatch.setattr(sys, "orig_argv", ["python", *start.split(), *rest])
    monkeypatch.setattr(sys, "argv", ["script.py", *rest])
    leave_working_directory()
    assert sys.path == [str(tmp_path), "elsewhere"]
    monkeypatch.setattr(sys, "argv", ["-m", *rest])
    leave_working_directory()
    assert sys.path == (["elsewhere"] if leaves else [str(tmp_path), "elsewhere"])


def test_a_child_finds_what_we_find_but_not_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, link, gone = tmp_path / "here", tmp_path / "link", str(tmp_path / "gone")
    (here / "lib").mkdir(parents=True)
    link.symlink_to(here)
    own = [path for path in sys.path if path and Path(path) != Path.cwd()]
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", ["", ".", str(here), str(link), "lib", gone, *own])
    command = python_command("print(sys.path, sys.argv[1:])", "a b", "-c")
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert found == f"{[str(here / 'lib'), gone, *own]} {['a b', '-c']}\n"
