"""Joining a run: what is asked of this owner, whether its data will do, and its signature."""

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from scool.algorithms.local_only import LocalOnly
from scool.data.federation import Federation
from scool.errors import ConfigError, DataError, QuarantineError, RunError, printable
from scool.peer.agreement import Agreement
from scool.peer.editions import Editions
from scool.peer.farewells import keep_farewells
from scool.peer.identity import Files, Keys, is_of, read_key, read_request
from scool.peer.invite import Invite
from scool.peer.leaving import check_not_left
from scool.peer.owner import (
    MEMBERS,
    RECORDS,
    Settings,
    load_data,
    read_bytes,
    sign,
    write_signatures,
)
from scool.peer.rehearsal import rehearse
from scool.recording.disk import write_bytes
from scool.run.loop import fit

ALONE = "alone.json"


class Candidate(NamedTuple):
    """An owner that has read an invite and may join."""

    folder: Path
    invite: Invite
    settings: Settings
    own: Federation

    @property
    def place(self) -> int:
        return self.invite.agreement.place_of(self.settings.name)

    def alone(self, rounds: int) -> list[float]:
        """The score after each round of training alone, on the own data: what the run has to beat.

        Raises:
            ScoolError: the model cannot be trained on these data.
        """
        return train_alone(self.folder, self.invite.agreement, self.own, rounds)

    def terms(self) -> list[str]:
        """What the owner agrees to, and what leaves this machine, line by line."""
        agreement = self.invite.agreement
        lines = [
            f"run {agreement.run}: {agreement.method}, {agreement.rounds} rounds, {agreement.mode}",
            "members, and the certificates that are pinned:",
        ]
        for member in agreement.members:
            you = "  (you)" if member.name == self.settings.name else ""
            lines.append(f"  {member.name}  {member.address}  {member.leaf[:23]}...{you}")
        targets = ", mean and spread of the targets" if self.own.task == "regression" else ""
        return [
            *lines,
            "what leaves this machine, to the other members and nobody else:",
            f"  once: how many samples there are{targets}; your signature under the agreement",
            *(f"  {line}" for line in self._in_every_round()),
            "what stays: samples, labels, the private key; audit.jsonl lists whatever left",
            "what a member can still do, such as guess at data from models: docs/peers.md",
        ]

    def _in_every_round(self) -> list[str]:
        """What leaves, and how much of it, as a rehearsal shows."""
        agreement = self.invite.agreement
        method, others = agreement.build_method(), len(agreement.members) - 1
        sent = rehearse(agreement, self.own, self.folder)
        lines = [f"in every round: {sent.words}"]
        if "cross_loss" in method.verbs:
            told = "how well the models of others do on your data, as one number each"
            lines.append(f"in every round: {told}")
        if "gather" in method.verbs:
            told = "some numbers about all your samples together, such as a mean loss"
            lines.append(f"in every round: {told}")
        lines.append(f"all of a round, to all members together: up to {sent.total(others)}")
        if method.finds_rate:
            lines[-1] += "; half of it or less when it is settled which kinds of cooperation pay"
        return lines

    def join(self, alone: list[float]) -> None:
        """Sign the agreement, and put everything that `run` needs into the folder."""
        agreement, folder = self.invite.agreement, self.folder
        leaves = [self.invite.leaves[name] for name in agreement.names]
        keys = Keys(read_bytes(Files.of(folder).key), leaves, self.place)
        keys.check_time()
        (folder / MEMBERS).mkdir(exist_ok=True)
        for name, leaf in zip(agreement.names, leaves, strict=True):
            write_bytes(folder / MEMBERS / f"{name}.pem", leaf)
        write_bytes(Files.of(folder).authority, self.invite.authority)
        write_bytes(Files.of(folder).leaf, leaves[self.place])
        write_alone(folder, alone)
        name, earlier = self.settings.name, self.invite.earlier
        first = next(edition for edition in (*earlier, agreement) if name in edition.names)
        write_signatures(folder, {name: sign(first, keys)})
        if earlier:
            Editions(earlier, self.invite.signatures, self.invite.farewells).write(
                folder, agreement.edition
            )
            keep_farewells(folder, self.invite.farewells)
        agreement.write(folder)


def train_alone(folder: Path, agreement: Agreement, own: Federation, rounds: int) -> list[float]:
    """See `Candidate.alone`. Where the method finds a learning rate, so does this one."""
    method = agreement.build_method()
    rate = method.sgd.lr
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = fit(
                own,
                agreement.builder(folder),
                LocalOnly(sgd=method.sgd) if rate else replace(method, kinds="alone"),  # type: ignore[call-arg]
                rounds=rounds,
                seed=agreement.seed,
                device="cpu",
                checkpoint_every=0,
                verbose=False,
            )
    except QuarantineError as error:
        raise DataError(
            "training alone on these data gives numbers that are not finite: standardise inputs "
            "and targets, or agree on a lower lr"
        ) from error
    scores = [row["scores"][0] for row in found.history]
    return scores if None not in scores else []


def write_alone(folder: Path, scores: list[float]) -> None:
    """Keep the scores of training alone: `status` shows them beside those of the run."""
    write_bytes(folder / ALONE, json.dumps({"scores": scores}).encode())


def read_alone(folder: Path) -> list[float]:
    """The scores of training alone, where they are known."""
    try:
        return list(json.loads((folder / ALONE).read_bytes())["scores"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def consider(folder: Path, path: Path) -> Candidate:
    """Read an invite as the owner of a folder, and see whether both go together.

    Raises:
        ScoolError: says what does not fit, and what to do. Nothing has been changed.
    """
    check_not_left(folder)
    settings = Settings.read(folder)
    invite, name = Invite.read(path), settings.name
    if name not in invite.agreement.names:
        raise ConfigError(
            f"{path} is not for {name}: its members are {', '.join(invite.agreement.names)}. Send "
            f"{name}.request to the founder, who makes a new invite"
        )
    if (folder / RECORDS).exists():
        raise RunError(
            f"{folder} has a run already: take another folder with the same key.pem and peer.toml"
        )
    if not is_of(read_key(read_bytes(Files.of(folder).key)), invite.leaves[name]):
        raise ConfigError(
            f"the certificate of {name} in {path} is not for the key in {folder}: send "
            f"{name}.request of this folder to the founder, who makes a new invite"
        )
    _check_address(folder, invite, name)
    invite.agreement.check_start(folder)
    own = load_data(folder, settings, invite.agreement)
    return Candidate(folder, invite, settings, own)


def _check_address(folder: Path, invite: Invite, name: str) -> None:
    path = folder / f"{name}.request"
    if not path.exists():
        return
    asked = read_request(read_bytes(path), path).address
    found = invite.agreement.members[invite.agreement.place_of(name)].address
    if asked != found:
        raise ConfigError(
            f"the invite has {found} as the address of {name}, and {path} asked for {asked}: it "
            "was made of another request. Send this one to the founder"
        )


def describe(own: Federation, scores: list[float], say: Callable[[str], None]) -> None:
    """Say what the data are, and what training alone gives."""
    parts = [(part, int(getattr(own, part).sizes[0])) for part in ("train", "val", "test")]
    said = ", ".join(f"{count} {part}" for part, count in parts if count)
    shape = "x".join(map(str, own.input_shape))
    say(f"data: {said} samples of shape {shape}, {own.num_outputs} outputs")
    train, mine = own.train, own.train.mask[0]
    if own.task == "classification" and len(train.y[0, mine].unique()) == 1:
        say("warning: all training samples are of one class: alone a model learns a constant")
    if not scores:
        say(
            "warning: no test samples, so nobody can tell how good the model will be: give x_test "
            "and y_test, or raise test_fraction in peer.toml"
        )
        return
    rounds = "1 round" if len(scores) == 1 else f"{len(scores)} rounds"
    measure = "accuracy" if own.task == "classification" else "R2"
    say(f"alone, after {rounds} of training here: {measure} {printable(format(scores[-1], '.2f'))}")
