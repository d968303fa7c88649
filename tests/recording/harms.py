"""Ways to damage one file of a run folder. A donor folder gives files of another run."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

Harm = Callable[[Path, Path, random.Random], None]


def _flip(path: Path, donor: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _change(path: Path, donor: Path, rng: random.Random) -> None:
    """Another letter or digit: what is most likely to stay readable."""
    content = bytearray(path.read_bytes())
    places = [n for n, byte in enumerate(content) if chr(byte).isalnum()] or [0]
    place = rng.choice(places)
    content[place] = rng.choice([b for b in b"0123456789abcdef" if b != content[place]])
    path.write_bytes(content)


def _cut(path: Path, donor: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content))])


def _cut_line(path: Path, donor: Path, rng: random.Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: rng.randrange(len(lines))]))


def _drop_line(path: Path, donor: Path, rng: random.Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    del lines[rng.randrange(len(lines))]
    path.write_bytes(b"".join(lines))


def _zeros(path: Path, donor: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    start = rng.randrange(len(content))
    end = min(len(content), start + rng.choice([1, 16, 512]))
    content[start:end] = bytes(end - start)
    path.write_bytes(content)


def _append(path: Path, donor: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.choice([1, 40, 4096])))


def _delete(path: Path, donor: Path, rng: random.Random) -> None:
    path.unlink()


def _foreign(path: Path, donor: Path, rng: random.Random) -> None:
    shutil.copy(donor, path)


def _sibling(path: Path, donor: Path, rng: random.Random) -> None:
    """Another file of the same kind of the same run."""
    others = [p for p in path.parent.glob(f"*{path.suffix}") if p != path and p.is_file()]
    shutil.copy(rng.choice(sorted(others) or [donor]), path)


def _empty(path: Path, donor: Path, rng: random.Random) -> None:
    path.write_bytes(b"")


def _pipe(path: Path, donor: Path, rng: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path, donor: Path, rng: random.Random) -> None:
    path.unlink()
    path.symlink_to(rng.choice([donor, Path("/dev/zero"), Path("/nowhere")]))


def _folder(path: Path, donor: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _deep(path: Path, donor: Path, rng: random.Random) -> None:
    """A JSON text, or a header of tensors, that is nested a hundred thousand times."""
    bomb = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    if path.suffix == ".safetensors":
        bomb = len(bomb).to_bytes(8, "little") + bomb
    path.write_bytes(bomb)


def _huge(path: Path, donor: Path, rng: random.Random) -> None:
    """A file that claims to be larger than any memory; it takes no room on the disk."""
    with path.open("r+b") as file:
        if path.suffix == ".safetensors":
            file.write((2**40).to_bytes(8, "little"))
        file.truncate(2**40)


HARMS: dict[str, Harm] = {
    "flip a bit": _flip,
    "change a letter": _change,
    "cut off": _cut,
    "cut at a line": _cut_line,
    "drop a line": _drop_line,
    "zeros": _zeros,
    "append": _append,
    "delete": _delete,
    "from another run": _foreign,
    "from beside": _sibling,
    "empty": _empty,
    "pipe": _pipe,
    "link": _link,
    "folder": _folder,
    "nested deep": _deep,
    "huge": _huge,
}
OFTEN = ("flip a bit", "change a letter", "cut off", "delete", "from another run")
