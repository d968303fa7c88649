"""What a command asks for: rows, data, seeds, and the folder of the records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from scool.data.catalogue import DataConfig, spelled
from scool.errors import require, unknown
from scool.reproduction.matching import row_options
from scool.reproduction.paper import CLIENTS, DATASETS, SETTINGS, Setting
from scool.reproduction.rows import ABLATIONS, BUDGET, GRAPHS, TABLE1, Row
from scool.run.config import RunConfig, default_run
from scool.run.options import with_options

TARGETS: dict[str, tuple[Row, ...]] = {
    "table1": TABLE1,
    "convergence": TABLE1,
    "graphs": GRAPHS,
    "graph-error": GRAPHS,
    "budget": BUDGET,
    "ablations": ABLATIONS,
}
EVALUATIONS = 20
"""Evaluations of a run, evenly spaced; the last round is always evaluated."""
CHECKPOINTS = 4
"""Checkpoints of a run, evenly spaced: a kill costs at most a quarter of it."""
SHORT = 100
"""Rounds up to which a run on a GPU has no checkpoints: it is over in minutes, and writing all
models four times would take up to a third of that."""


@dataclass(frozen=True)
class Study:
    """Data, seeds and length: what all runs of a command have in common."""

    dataset: str = "cifar10"
    setting: Setting = "noniid"
    seeds: int = 1
    seed: int = 0
    """The first one."""
    rounds: int = 0
    """Most rounds of a run; 0: as many as its row says."""
    device: str = "auto"
    data_dir: str | None = None
    clients: int = 0
    """0: 100, as in the paper."""
    verify_checksums: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset", spelled(self.dataset))
        if self.dataset not in DATASETS:
            unknown("dataset", self.dataset, DATASETS)
        if self.setting not in SETTINGS:
            unknown("setting", self.setting, SETTINGS)
        require(self.seeds >= 1, "seeds", self.seeds, "give at least 1")
        require(self.seed >= 0, "seed", self.seed, "give 0 or more")
        require(self.rounds >= 0, "rounds", self.rounds, "give 0 (as the row says) or more")
        require(self.clients >= 0, "clients", self.clients, "give 0 (as the paper) or more")
        if self.clients == CLIENTS:  # the same study under its other name
            object.__setattr__(self, "clients", 0)

    @property
    def place(self) -> str:
        """The folder of its runs: trials with fewer clients have folders of their own."""
        clients = f"-{self.clients}-clients" if self.clients else ""
        return f"{self.dataset}-{self.setting}{clients}"

    @property
    def name(self) -> str:
        """Of its tables and figures."""
        return self.place + (f"-{self.rounds}-rounds" if self.rounds else "")

    @property
    def title(self) -> str:
        words = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "mini-imagenet": "Mini-ImageNet"}
        kinds = {"noniid": "non-IID", "sbm": "non-IID SBM"}
        return f"{words[self.dataset]}, {kinds[self.setting]}"

    def config(self, row: Row, seed: int) -> RunConfig:
        """The run of a row: the recipe of its method, the row's options, the common settings."""
        data = DataConfig(
            dataset=self.dataset,
            partition=self.setting,
            data_dir=self.data_dir,
            clients=self.clients,
            verify_checksums=self.verify_checksums,
        )
        start = default_run(row.method, data)
        config = with_options(start, row.options, f"row {row.name}")
        rounds = min(row.rounds, self.rounds or row.rounds)
        is_short = rounds <= SHORT and self.device != "cpu" and torch.cuda.is_available()
        settings = replace(
            config.settings,
            rounds=rounds,
            seed=seed,
            device=self.device,
            eval_every=max(1, rounds // EVALUATIONS),
            checkpoint_every=0 if is_short else max(1, rounds // CHECKPOINTS),
        )
        return replace(config, settings=settings)


def folder_names(study: Study) -> dict[str, str]:
    """The folder of each run: the name of the first row that is that run."""
    names: dict[str, str] = {}
    for row in (*TABLE1, *BUDGET, *ABLATIONS):
        names.setdefault(_key(study, row), row.name)
    return names


def _key(study: Study, row: Row) -> str:
    """Equal for rows that are the same run."""
    config = study.config(row, 0)
    return repr((config.settings.rounds, sorted(row_options(config.to_dict()).items())))


def choose_rows(target: str, words: str = "all") -> tuple[Row, ...]:
    """All rows of a target, or those named: by row, else by method or by family of ablations.

    Ablations bring along the rows they are compared with, in front of their family.
    """
    if target not in TARGETS:
        unknown("target", target, TARGETS)
    rows = TARGETS[target]
    names = [word.strip() for word in words.split(",") if word.strip()]
    require(bool(names), "methods", words, "give rows, methods or families, or all")
    own = {row.name for row in rows}
    known = own | {word for row in rows for word in (row.method, row.family, "all") if word}
    for name in names:
        if name not in known:
            unknown(f"row of {target}", name, known)
    chosen = [
        row
        for row in rows
        if any(
            name in ("all", row.name) or (name not in own and name in (row.method, row.family))
            for name in names
        )
    ]
    return tuple(_with_references(chosen) if target == "ablations" else chosen)


def _with_references(rows: Sequence[Row]) -> list[Row]:
    by_name: Mapping[str, Row] = {row.name: row for row in (*ABLATIONS, *TABLE1)}
    found: list[Row] = []
    for family in dict.fromkeys(row.family for row in rows):
        members = [row for row in rows if row.family == family]
        references = dict.fromkeys(row.against for row in members)
        found += [replace(by_name[name], family=family, against="") for name in references]
        found += members
    return found


class Job(NamedTuple):
    """One run of a plan."""

    row: Row
    config: RunConfig
    folder: Path
    has_pictures: bool
    """The command's first seed of a row that is drawn: the graphs of some rounds are kept."""

    @property
    def name(self) -> str:
        return f"{self.row.name}, seed {self.config.settings.seed}"


def jobs_of(study: Study, rows: Sequence[Row], out: Path) -> list[Job]:
    """Every run once, seed by seed, so that the runs of a seed share its clients; runs without
    augmentation last, because their data differ."""
    names, pictured = folder_names(study), {row.name for row in GRAPHS}
    found: dict[Path, Job] = {}
    for seed in range(study.seed, study.seed + study.seeds):
        of_seed: list[Job] = []
        for row in rows:
            name, config = names.get(_key(study, row), row.name), study.config(row, seed)
            rounds = config.settings.rounds
            length = f"-{rounds}-rounds" if rounds < row.rounds else ""
            folder = out / study.place / f"{name}{length}" / f"seed-{seed}"
            of_seed.append(Job(row, config, folder, seed == study.seed and name in pictured))
        for job in sorted(of_seed, key=lambda job: not job.config.settings.data.augment):
            found.setdefault(job.folder, job)
    return list(found.values())
