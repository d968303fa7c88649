"""How far one has to walk to follow one round, and how large the house is.

`python benchmarks/walk.py` prints the numbers; `--files` also lists the files in the order in which
one round enters them, with the functions that run in each.
"""

import argparse
import ast
import contextlib
import inspect
import io
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "scool"
COMMAND = "run scool-sbm --rounds 1 --dataset synthetic --quiet --json --device cpu"


def walked() -> dict[str, list[str]]:
    """The functions that run during COMMAND, by file, in the order of their first call. What only
    runs while modules are imported does not count."""
    from scool.cli.main import run_command

    prefix, seen = str(PACKAGE), dict[CodeType, None]()

    def watch(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(prefix) and code not in seen:
            if code.co_flags & inspect.CO_OPTIMIZED and not _is_import(frame):
                seen[code] = None

    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
        threading.setprofile(watch)
        sys.setprofile(watch)
        try:
            failed = run_command([*COMMAND.split(), "--out", f"{out}/run"])
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    if failed:
        raise SystemExit(f"scool {COMMAND} ended with {failed}")
    found: dict[str, list[str]] = {}
    for code in seen:
        name = Path(code.co_filename).relative_to(PACKAGE).as_posix()
        found.setdefault(name, []).append(code.co_qualname)
    return found


def _is_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            return True
        frame = frame.f_back
    return False


def fit_size() -> tuple[int, int]:
    """Lines of `scool.fit`, with its signature and docstring, and its arguments."""
    tree = ast.parse((PACKAGE / "run" / "loop.py").read_text())
    fit = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "fit")
    last, names = fit.end_lineno, fit.args
    assert last is not None
    count = len(names.posonlyargs + names.args + names.kwonlyargs)
    return last - fit.lineno + 1, count + (names.vararg is not None) + (names.kwarg is not None)


def tracked() -> tuple[int, float]:
    """Files in git, and their megabytes in the checkout."""
    words = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    files = [ROOT / name for name in words.split("\0") if name]
    return len(files), sum(f.stat().st_size for f in files if f.is_file()) / 1e6


def rooms() -> dict[str, int]:
    """Lines of each room under the package, the largest first; modules outside a room together."""
    found: dict[str, int] = {}
    for file in PACKAGE.rglob("*.py"):
        inside = file.relative_to(PACKAGE).parts
        room = f"{inside[0]}/" if len(inside) > 1 else "(modules outside a room)"
        found[room] = found.get(room, 0) + len(file.read_text().splitlines())
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", action="store_true", help="also list what was walked through")
    wanted = parser.parse_args()
    files, megabytes = tracked()
    lines_by_room = rooms()
    body, arguments = fit_size()
    steps = walked()
    numbers = {
        "files_walked": len(steps),
        "functions_walked": sum(map(len, steps.values())),
        "lines_under_src": sum(lines_by_room.values()),
        "files_under_src": len(list(PACKAGE.rglob("*.py"))),
        "tracked_files": files,
        "tracked_megabytes": round(megabytes, 1),
        "fit_lines": body,
        "fit_arguments": arguments,
        "lines_by_room": lines_by_room,
    }
    print(json.dumps(numbers, indent=2))
    for name, functions in steps.items() if wanted.files else ():
        print(f"{name}: {', '.join(functions)}")


if __name__ == "__main__":
    main()
