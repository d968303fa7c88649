"""`scool peer status`: how peers are doing, once or all the time, here or in a browser."""

import json as json_module
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console as Terminal
from rich.console import Group, RenderableType
from rich.live import Live

from scool.errors import require


@dataclass(frozen=True)
class StatusCommand:
    """What peers wrote last about themselves: who is here, from whom they learn, how well."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Owners' folders, or folders that hold some."""
    watch: bool = False
    """Look again and again until all have finished; Ctrl-C ends it, and no peer."""
    page: int | None = None
    """Show it in a browser of this machine, at this port of 127.0.0.1; 0 takes a free one."""
    every: float = 1.0
    """Seconds between looks."""
    json: bool = False
    """Print JSON: one object per peer and line."""


def status(arguments: Sequence[str]) -> int:
    from scool.peer.page import peers_page, serving
    from scool.peer.standing import Standing, find_peers

    command = tyro.cli(StatusCommand, args=list(arguments), prog="scool peer status")
    require(command.every > 0, "every", command.every, "give a positive number of seconds")

    def look() -> list[Standing]:
        return [Standing.read(folder) for folder in find_peers(list(command.folders))]

    peers = look()
    if command.json:
        for peer in peers:
            print(json_module.dumps({**peer.told, "is_running": peer.is_alive}))
        return 0
    if command.page is None and not command.watch:
        Terminal().print(drawn(peers))
        return 0
    with ExitStack() as held, suppress(KeyboardInterrupt):
        if command.page is not None:
            page = serving(command.page, lambda: peers_page(look()))
            print(f"{held.enter_context(page)}  Ctrl-C ends it, and no peer", flush=True)
        if command.watch:
            _watch(look, command.every)
        while command.page is not None:
            time.sleep(command.every)
    return 0


def drawn(peers: Sequence) -> RenderableType:
    """One peer in full, several as a table."""
    from scool.peer.panel import peer_panel, peers_table

    return peer_panel(peers[0]) if len(peers) == 1 else Group(peers_table(peers))


def _watch(look: Callable[[], list], every: float) -> None:
    """A terminal shows the newest picture; elsewhere lines are written that have changed."""
    from scool.peer.panel import peer_line

    console, last = Terminal(), dict[Path, str]()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            peers = look()
            if console.is_terminal:
                live.update(drawn(peers), refresh=True)
            else:
                for peer in peers:
                    if last.get(peer.folder) != (line := peer_line(peer)):
                        last[peer.folder] = line
                        print(line, file=sys.stdout, flush=True)
            if all(peer.is_over for peer in peers):
                return
            time.sleep(every)
