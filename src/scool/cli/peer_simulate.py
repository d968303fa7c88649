"""`scool peer simulate`: real processes on this machine, and what may happen to them."""

import json as json_module
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from scool.cli.arguments import read_toml
from scool.errors import ConfigError

Many = tyro.conf.UseAppendAction


@dataclass(frozen=True)
class SimulateCommand:
    """Run owners as processes on this machine, over TLS, with faults; compare with one process.

    Peers are numbered from 0. A fault happens when most peers have done so many rounds.
    """

    peers: int = 8
    """How many owners."""
    rounds: int = 30
    """Communication rounds."""
    method: str = "scool-sbm"
    """A method that runs on peers."""
    mode: str = "elastic"
    """elastic, or strict: then all must equal the simulator to the bit."""
    deadline: float = 10.0
    """elastic: seconds that a round waits at most."""
    seed: int = 0
    """Decides data, first model and every draw."""
    kill: Annotated[tuple[str, ...], Many] = ()
    """PEER@ROUND+SECONDS: killed, and started again after so long; may be repeated."""
    replace: Annotated[tuple[str, ...], Many] = ()
    """The same, with an empty folder: the machine was lost."""
    stop: Annotated[tuple[str, ...], Many] = ()
    """PEER@ROUND+SECONDS: stands still for so long, as a laptop that sleeps."""
    cut: Annotated[tuple[str, ...], Many] = ()
    """PEERS/PEERS@ROUND+SECONDS: nothing passes between the two, e.g. 0-3/4-7@8+10."""
    late: Annotated[tuple[str, ...], Many] = ()
    """PEER@ROUND: starts when the others have done so many rounds."""
    newcomer: Annotated[tuple[str, ...], Many] = ()
    """PEER@ROUND: no member at first; all sign an amendment then. Rounds need a --pace of 0.5."""
    unreserved: bool = False
    """No place is reserved for newcomers: the run grows when they come."""
    loss: float = 0.0
    """Share of pieces of data that come 0.2 s later, as after the loss of a packet."""
    pace: float = 0.0
    """Seconds that a round takes at least, as if training took so long."""
    groups: int = 2
    """Groups of owners that name the digits differently."""
    options: Path | None = None
    """A TOML file with options of the method."""
    model: Path | None = None
    """A TOML file with options of the network, such as hidden = [64]."""
    out: Path | None = None
    """Keep the owners' folders here."""
    limit: float = 600.0
    """Seconds after which what still runs is ended."""
    check: bool = False
    """End with 1 if somebody was lost or the result is worse than the simulator's."""
    json: bool = False
    """Print JSON."""


def simulate(arguments: Sequence[str]) -> int:
    from scool.data.catalogue import DataConfig, load
    from scool.peer.faults import read_faults
    from scool.peer.outcome import Outcome, as_json, as_text
    from scool.peer.pilot import Trial
    from scool.peer.simulate import Plan
    from scool.peer.simulate import simulate as run

    command = tyro.cli(SimulateCommand, args=list(arguments), prog="scool peer simulate")
    faults = {
        "kill": command.kill,
        "replace": command.replace,
        "stop": command.stop,
        "cut": command.cut,
    }
    trial = Trial(
        command.method,
        command.rounds,
        command.seed,
        mode=command.mode,  # type: ignore[arg-type]  # checked with the agreement
        deadline=command.deadline,
    )
    plan = Plan(
        command.peers,
        trial,
        read_faults(faults, command.peers),  # type: ignore[arg-type]
        dict(_starts(text, command.peers, "late") for text in command.late),
        dict(_starts(text, command.peers, "newcomer") for text in command.newcomer),
        not command.unreserved,
        command.loss,
        command.pace,
        command.limit,
        read_toml(str(command.model)) if command.model else {},
    )
    data = load(DataConfig(clients=command.peers, groups=command.groups), command.seed)

    def tell(words: str) -> None:
        print(words, file=sys.stderr)

    with tempfile.TemporaryDirectory(prefix="scool-peers-") as temporary:
        folder = command.out or Path(temporary) / "peers"
        options = _options(command)
        outcome = Outcome(plan, run(folder, plan, options, data, tell), data.groups)
        found = outcome.summary()
        wrong = outcome.failures(found)
    print(json_module.dumps(as_json(found)) if command.json else as_text(found, wrong))
    return 1 if command.check and wrong else 0


def _options(command: SimulateCommand) -> dict[str, Any]:
    """Those of the file; SCooL keeps as many peers as there are in a group unless it says."""
    options = read_toml(str(command.options)) if command.options else {}
    if command.method.startswith("scool"):
        share = (command.peers / command.groups - 1) / command.peers
        options = {"fraction": max(share, 1 / command.peers)} | dict(options)
    return dict(options)


def _starts(text: str, count: int, option: str) -> tuple[int, int]:
    place, _, round_ = text.partition("@")
    if not (place.isdigit() and round_.isdigit() and int(place) < count):
        raise ConfigError(f"--{option} {text} is not possible: give PEER@ROUND, e.g. 5@10")
    return int(place), int(round_)
