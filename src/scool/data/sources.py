"""Other sources of your own data: Hugging Face datasets, image folders, .npz files."""

import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scool.data.arrays import from_arrays
from scool.data.federation import Federation
from scool.data.frames import from_frame
from scool.data.preprocessing import ordered
from scool.data.tables import quoted
from scool.data.transform import ImageTransform
from scool.errors import DataError, nearest, need, require

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def from_datasets(
    dataset: Any,
    client: str,
    label: str,
    *,
    image: str | None = None,
    size: tuple[int, int] | None = None,
    transform: ImageTransform | None = None,
    **options: Any,
) -> Federation:
    """A federation from a dataset of Hugging Face with a column that names each row's client.

    Args:
        dataset: one split, as `datasets.load_dataset(..., split="train")` gives it, or several by
            name: `train`, `validation` and `test` are the parts.
        client: the column that names each row's client.
        label: the column to predict; names of classes are kept.
        image: a column of images; without it the columns are features as in `from_frame`.
        size: (height, width) that images are brought to.
        transform: how images become inputs; default: scaled to about [-1, 1].
        **options: those of `from_frame`, for images of `from_arrays`.
    """
    parts = dict(dataset) if hasattr(dataset, "keys") else {"": dataset}
    words = {"": "", "train": "train", "validation": "val", "val": "val", "test": "test"}
    unknown = [name for name in parts if name not in words]
    if unknown or not parts:
        raise DataError(
            f"the dataset has parts {', '.join(parts)}: give one of them, or train, validation and "
            "test"
        )
    first = next(iter(parts.values()))
    columns = list(getattr(first, "column_names", ()))
    if not columns:
        raise DataError(f"dataset is a {type(first).__name__}: give a dataset with column_names")
    for name in (client, label, *((image,) if image else ())):
        if name not in columns:
            raise DataError(f"{name!r} is not a column of the dataset: {nearest(name, columns)}")
    class_names = _class_names(first, label)
    if image is not None:
        rows = [
            (words[part], str(own[client][n]), own[label][n], own[image][n])
            for part, own in parts.items()
            for n in range(len(own))
        ]
        options.setdefault("name", "dataset")
        return _from_images(rows, class_names, size, transform, options)
    pd = need("pandas", "a table")
    frames = [own.to_pandas().assign(**{"part ": words[part]}) for part, own in parts.items()]
    frame = pd.concat(frames, ignore_index=True)
    if class_names:
        frame[label] = frame[label].map(dict(enumerate(class_names)))
    if list(parts) == [""]:
        frame = frame.drop(columns="part ")
    else:
        options.setdefault("split", "part ")
    options.setdefault("name", "dataset")
    return from_frame(frame, client, label, **options)


def _class_names(dataset: Any, label: str) -> list[str]:
    """The names that the dataset has for its numbers; empty where it has none."""
    feature = (getattr(dataset, "features", None) or {}).get(label)
    return [str(name) for name in getattr(feature, "names", None) or ()]


def from_image_folder(
    folder: str | Path,
    *,
    size: tuple[int, int] | None = None,
    grey: bool = False,
    transform: ImageTransform | None = None,
    **options: Any,
) -> Federation:
    """A federation from images in folders CLIENT/CLASS/, or PART/CLIENT/CLASS/ with the parts
    train, val and test. Reading them needs the extra `images`.

    Args:
        folder: holds a folder per client.
        size: (height, width) that images are brought to; default: as they are, all alike.
        grey: one channel in place of three.
        transform: how images become inputs; default: scaled to about [-1, 1].
        **options: those of `from_arrays`.
    """
    root = Path(folder)
    if not root.is_dir():
        raise DataError(f"{root} is not a folder: give one with CLIENT/CLASS/ below it")
    inside = {path.name for path in root.iterdir() if path.is_dir()}
    parts = ["train", "val", "test"] if "train" in inside else [""]
    rows: list[tuple[str, str, str, Any]] = []
    for part in parts:
        for path in sorted((root / part).glob("*/*/*")):
            if path.suffix.lower() in IMAGES:
                rows.append((part, path.parts[-3], path.parts[-2], path))
    if not rows:
        raise DataError(
            f"{root} has no images in CLIENT/CLASS/, such as {root}/north/ill/1.png: endings are "
            f"{', '.join(IMAGES)}"
        )
    _warn_empty(root, parts, {who for _, who, *_ in rows})
    loaded = [(part, who, what, _open(path, grey)) for part, who, what, path in rows]
    options.setdefault("name", root.name)
    return _from_images(loaded, [], size, transform, options)


def _warn_empty(root: Path, parts: Sequence[str], found: set[str]) -> None:
    """Folders that look like a client's, and have no image in a folder of a class."""
    folders = (path for part in parts for path in (root / part).glob("*/"))
    empty = {path.name for path in folders if not path.name.startswith(".")} - found
    if empty:
        warnings.warn(
            f"folders {quoted(sorted(empty))} have no images in CLIENT/CLASS/ and are left out: "
            "put the images into a folder for each class, or remove these folders",
            stacklevel=3,
        )


def _open(path: Path, grey: bool) -> Any:
    image = need("PIL.Image", "reading images")
    try:
        with image.open(path) as opened:
            return opened.convert("L" if grey else "RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path} cannot be read as an image ({error}): fix or remove it") from None


def _pixels(image: Any, size: tuple[int, int] | None) -> np.ndarray:
    """(channels, height, width) uint8 of a Pillow image or an array (height, width[, channels])."""
    if hasattr(image, "convert"):
        if image.mode not in ("L", "RGB"):
            image = image.convert("RGB")
        if size is not None:
            image = image.resize((size[1], size[0]))
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        raise DataError(
            f"an image is {pixels.dtype} of shape {pixels.shape}: give images, or uint8 arrays "
            "(height, width, channels)"
        )
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _from_images(
    rows: Sequence[tuple[str, str, Any, Any]],
    class_names: Sequence[str],
    size: tuple[int, int] | None,
    transform: ImageTransform | None,
    options: dict[str, Any],
) -> Federation:
    """Rows of part, client, class and image."""
    pixels = [_pixels(image, size) for *_, image in rows]
    shapes = sorted({p.shape for p in pixels})
    if len(shapes) > 1:
        raise DataError(
            f"images have shapes {shapes[0]} and {shapes[-1]} (channels, height, width): give "
            f"size=({shapes[0][1]}, {shapes[0][2]}), or images of one kind"
        )
    names = list(class_names) or ordered(sorted({str(what) for _, _, what, _ in rows}))
    number = {name: at for at, name in enumerate(names)}
    label = [int(what) if class_names else number[str(what)] for _, _, what, _ in rows]
    whose = ordered(sorted({who for _, who, _, _ in rows}))
    clients: list[dict[str, Any]] = []
    for name in whose:
        clients.append({})
        for part in sorted({part for part, *_ in rows}):
            own = [n for n, (p, who, *_) in enumerate(rows) if (p, who) == (part, name)]
            if own:
                end = f"_{part}" if part else ""
                clients[-1][f"x{end}"] = np.stack([pixels[n] for n in own])
                clients[-1][f"y{end}"] = np.array([label[n] for n in own])
    channels = shapes[0][0]
    plain = ImageTransform((0.5,) * channels, (0.5,) * channels)
    return from_arrays(
        clients,
        transform=transform or plain,
        client_names=whose,
        class_names=names,
        num_classes=len(names),
        **options,
    )


def from_npz(files: str | Path | Sequence[str | Path], **options: Any) -> Federation:
    """A federation from .npz files: one per client with arrays `x` and `y` (or `x_train`,
    `y_train`, `x_test`, ...), in a folder or listed; or one file with `x`, `y` and `client`.

    Args:
        files: a folder, one file, or a list of files; a client is named after its file.
        **options: those of `from_arrays`.
    """
    if isinstance(files, str | Path):
        path = Path(files)
        paths = sorted(path.glob("*.npz")) if path.is_dir() else [path]
        require(len(paths) > 0, "files", str(path), "give a folder with a file NAME.npz per client")
    else:
        paths = [Path(file) for file in files]
        require(len(paths) > 0, "files", files, "give the files of the clients")
    stored = [_arrays(path) for path in paths]
    if len(stored) == 1 and "client" in stored[0]:
        return _by_client(stored[0], paths[0], options)
    return from_arrays(stored, client_names=[path.stem for path in paths], **options)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    if path.is_file() and not zipfile.is_zipfile(path):
        raise DataError(f"{path} is not an .npz file: save it by numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        raise DataError(f"{path} is missing: check the path") from None
    except (OSError, EOFError, ValueError, AttributeError) as error:
        raise DataError(
            f"{path} cannot be read as .npz ({error}): save it by numpy.savez"
        ) from None


def _by_client(arrays: dict[str, np.ndarray], path: Path, options: dict[str, Any]) -> Federation:
    """One file with the samples of all clients."""
    if set(arrays) != {"x", "y", "client"} or len({len(a) for a in arrays.values()}) != 1:
        shapes = ", ".join(f"{name} {a.shape}" for name, a in arrays.items())
        raise DataError(f"{path} has {shapes}: give x, y and client with a row per sample")
    whose = arrays["client"].astype(str)
    names = ordered(sorted(set(whose.tolist())))
    clients = [(arrays["x"][whose == name], arrays["y"][whose == name]) for name in names]
    options.setdefault("name", path.stem)
    return from_arrays(clients, client_names=names, **options)
