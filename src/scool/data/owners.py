"""Federations of real owners: hospitals, patients, phones, schools, mine fields, speaking roles.

Each is one file and one entry of `OWNERS`. None has a planted graph. Files are checked by their
content, so that a repacked copy is accepted.
"""

import gzip
import hashlib
import io
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scool.data.build import group_graph
from scool.data.federation import Federation, Task
from scool.data.frames import from_frame
from scool.data.row_splits import RowSplit
from scool.data.speech import speech_federation
from scool.errors import DataError, need

BUILT_IN = Path(__file__).with_name("heart_disease.csv")


@dataclass(frozen=True)
class Owners:
    """One federation of real owners."""

    about: str
    owner: str  # what one owner is, in the singular
    clients: int
    file: str  # path under the data root; packed (.gz) or not
    sha256: str  # of what it holds
    source: str
    licence: str
    build: Callable[[Any, RowSplit], Federation]
    task: Task = "classification"
    metric: str = "accuracy"  # what it is usually judged by

    def load(
        self, root: Path, *, seed: int = 0, val_fraction: float = 0.0, verify: bool = True
    ) -> Federation:
        """The clients with their parts; the seed decides which samples are for the test.

        Raises:
            DataError: the file is missing, truncated or altered.
        """
        content = self._content(root, verify)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is as it is, such as a user with one activity
            return self.build(content, RowSplit(val_fraction=val_fraction, seed=seed))

    def _content(self, root: Path, verify: bool) -> Any:
        """Arrays by name of an .npz, or the bytes of a table."""
        path = BUILT_IN if self.file == BUILT_IN.name else root / self.file
        remedy = f"put {path.name} there, from {self.source}"
        if not path.exists() and path.with_name(path.name + ".gz").exists():
            path = path.with_name(path.name + ".gz")
        try:
            if path.suffix == ".npz":
                with np.load(path, allow_pickle=False) as stored:
                    content: Any = {name: stored[name] for name in sorted(stored.files)}
            else:
                content = path.read_bytes()
                content = gzip.decompress(content) if path.suffix == ".gz" else content
        except FileNotFoundError:
            raise DataError(f"{path} is missing (or {path.name}.gz): {remedy}") from None
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{path} cannot be read ({error}): {remedy}") from None
        if verify and (found := content_digest(content)) != self.sha256:
            raise DataError(
                f"{path} holds something else than the published data (SHA-256 {found[:12]}, "
                f"expected {self.sha256[:12]}): {remedy}; --no-verify-checksums reads it as it is"
            )
        return content


def content_digest(content: Any) -> str:
    """SHA-256 of bytes, or of the names, types and numbers of arrays.

    >>> content_digest(b"")[:12]
    'e3b0c44298fc'
    """
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    digest = hashlib.sha256()
    for name, array in sorted(content.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _table(content: bytes, **options: Any) -> Any:
    return need("pandas", "a table").read_csv(io.BytesIO(content), low_memory=False, **options)


def _made(frame: Any, client: str, label: str, how: RowSplit, **options: Any) -> Federation:
    options = {"missing": "common"} | options
    return from_frame(frame, client, label, seed=how.seed, val_fraction=how.val_fraction, **options)


def _heart(content: bytes, how: RowSplit) -> Federation:
    """Two columns are empty at nearly all patients of three hospitals, so gaps are filled."""
    options = {"positive": "present", "name": "heart-disease"}
    return _made(_table(content), "hospital", "disease", how, **options)


def _landmine(content: dict[str, np.ndarray], how: RowSplit) -> Federation:
    """Fields 1 to 15 lie in foliage, the others in bare ground: the groups of the literature."""
    pd = need("pandas", "a table")
    frame = pd.DataFrame(content["x"], columns=[f"radar {n}" for n in range(1, 10)])
    frame["field"] = content["client"] + 1
    frame["object"] = np.where(content["y"] == 1, "mine", "clutter")
    federation = _made(frame, "field", "object", how, positive="mine", name="landmine")
    groups = torch.tensor([int(int(n) > 15) for n in federation.client_names or ()])
    return replace(federation, groups=groups, truth=group_graph(groups))


def _school(content: dict[str, np.ndarray], how: RowSplit) -> Federation:
    """Seed s takes the standard split s modulo ten; the last column is a constant."""
    pd = need("pandas", "a table")
    varying = content["x"].std(axis=0) > 0
    names = [f"column {n}" for n in np.flatnonzero(varying) + 1]
    frame = pd.DataFrame(content["x"][:, varying].astype(float), columns=names)
    masks = content["train_masks"]
    frame["part"] = np.where(masks[how.seed % len(masks)], "train", "test")
    frame["school"], frame["score"] = content["client"] + 1, content["y"].astype(float)
    return _made(frame, "school", "score", how, split="part", task="regression", name="school")


def _wisdm(content: bytes, how: RowSplit) -> Federation:
    """Windows of ten seconds; a peak that was not found is filled with the common mean."""
    frame = _table(content, na_values="?").drop(columns=["UNIQUE_ID", "XAVG"])
    return _made(frame, "user", "class", how, name="wisdm")


def _parkinsons(content: bytes, how: RowSplit) -> Federation:
    """The six recordings of a patient's day have the same target, so a day is in one part."""
    frame = _table(content).drop(columns=["total_UPDRS"])
    days = np.floor(frame["test_time"]).astype(int)
    frame["day"] = frame["subject#"].astype(str) + ":" + days.astype(str)
    options: dict[str, Any] = {"group": "day", "task": "regression", "name": "parkinsons"}
    return _made(frame, "subject#", "motor_UPDRS", how, **options)


def _shakespeare(content: bytes, how: RowSplit) -> Federation:
    return speech_federation(_table(content, keep_default_na=False), how)


OWNERS: dict[str, Owners] = {
    "heart-disease": Owners(
        "920 patients of four hospitals; whether the heart is diseased",
        "hospital",
        4,
        BUILT_IN.name,
        "084c6dfeca43c529ebc11d66330ee89ed71e023498bfcb8beabd4b40e57036c3",
        "the package",
        "CC BY 4.0 (Janosi, Steinbrunn, Pfisterer, Detrano, UCI 1988)",
        _heart,
        metric="auc",
    ),
    "landmine": Owners(
        "14,820 radar echoes of 29 fields; mine or clutter",
        "mine field",
        29,
        "landmine/landmine.npz",
        "29304f041e4485e029d215502ef41500c3e83fa08ae7df3407b2db7477ee6bfe",
        "LandmineData.mat of github.com/daizhongxiang/Federated_Bayesian_Optimization, as arrays "
        "x, y, client",
        "none stated (Xue et al., JMLR 8, 2007)",
        _landmine,
        metric="auc",
    ),
    "school": Owners(
        "15,362 pupils of 139 London schools; their exam scores",
        "school",
        139,
        "school/school.npz",
        "5e1151545b93b5ce44bcff5b2d0c3f8c92d55782f70b11c8c0cf1cbd002724c2",
        "datasets/school_splits of github.com/vzantedeschi/Dada, as arrays x, y, client, "
        "train_masks",
        "for research (Inner London Education Authority)",
        _school,
        task="regression",
        metric="rmse",
    ),
    "wisdm": Owners(
        "5,418 windows of 36 phones; six activities of their users",
        "phone user",
        36,
        "wisdm/wisdm_transformed.csv",
        "0432ceb82d7817056616bf84fde694298ab8b47eb91adbf7bda05bbb7b63bf73",
        "WISDM_ar_v1.1_transformed of the Fordham WISDM Lab, as CSV with a header",
        "for research (Kwapisz, Weiss, Moore, SensorKDD 2010)",
        _wisdm,
    ),
    "parkinsons": Owners(
        "5,875 voice recordings of 42 patients; their motor UPDRS",
        "patient",
        42,
        "parkinsons/parkinsons_updrs.data",
        "f2c7d5025dec4e92e7feae367a5f7ccf58789a10ac6b54bdf15976c599f9dd39",
        "archive.ics.uci.edu, Parkinsons Telemonitoring",
        "CC BY 4.0 (Tsanas, Little, UCI 2009)",
        _parkinsons,
        task="regression",
        metric="rmse",
    ),
    "shakespeare": Owners(
        "324,000 places in the lines of 266 roles; the next character",
        "speaking role",
        266,
        "shakespeare/lines.csv",
        "e3aa99e59baf3523e1b3e7899133c94b4e62608bb970067c094c424cca296dc8",
        "github.com/TheMITTech/shakespeare, as CSV with play, speech, role, line_id, text",
        "public domain",
        _shakespeare,
    ),
}


def heart_disease(*, seed: int = 0, val_fraction: float = 0.0) -> Federation:
    """The patients of four hospitals, which come with the package: real owners without a download.

    UCI Heart Disease (Janosi, Steinbrunn, Pfisterer, Detrano, 1988), CC BY 4.0; see
    `heart_disease.txt` beside the table.

    >>> heart_disease().client_names
    ('Budapest', 'Cleveland', 'Long Beach', 'Switzerland')
    """
    return OWNERS["heart-disease"].load(Path(), seed=seed, val_fraction=val_fraction)
