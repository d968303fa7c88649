"""Peers on a terminal: one of them in full, or several in a table."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from scool.columns import human_bytes
from scool.display.live import SPARKS, sparkline
from scool.errors import printable
from scool.peer.standing import Standing

BAR = 24  # characters of a whole share
SHOWN = 3  # of the newest faults
MARKS = {"here": ("●", "green"), "away": ("○", "dim"), "left for good": ("x", "dim"), "": (" ", "")}


def peer_panel(peer: Standing) -> Panel:
    """Who is here, from whom this peer learns, its score against alone, bytes, and faults."""
    head = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=max(1, peer.told["rounds"]), completed=peer.told["round"], width=SPARKS)
    head.add_row(bar, _text(f"{peer.state}, {peer.progress}"))
    parts: list[RenderableType] = [head]
    if peer.sentence:
        parts.append(_text(peer.sentence, "yellow"))
    parts += [Text(), _members(peer), Text()]
    parts += [_scores(peer)] if peer.scores else []
    parts.append(_facts(peer))
    parts += [_text(f"fault: {words}", "yellow") for words in peer.faults[:SHOWN]]
    return Panel(Group(*parts), title=_text(peer.title), title_align="left")


def _text(words: str, style: str = "") -> Text:
    return Text(printable(words), style=style)


def _members(peer: Standing) -> Table:
    """One line each: a bar says how much of that member's model is in this peer's."""
    table = Table.grid(padding=(0, 2))
    for member in peer.neighbours:
        mark, style = MARKS[member.where]
        share = member.weight or 0.0
        bar = "█" * round(share * BAR) or ("▏" if share > 0 else "")
        you = " (this one)" if member.name == peer.name else ""
        table.add_row(
            Text(mark, style=style),
            _text(member.name + you),
            _text(member.where, "dim"),
            Text(bar, style="cyan"),
            "" if member.weight is None else f"{share:.0%}",
        )
    return table


def _scores(peer: Standing) -> Table:
    """The own score, and below it that of training alone."""
    table = Table.grid(padding=(0, 2))
    lines = [(peer.told["measure"], peer.scores, peer.gain and f"{peer.gain} against alone")]
    lines += [("alone", peer.alone, peer.alone_after)]
    for name, scores, words in lines:
        if scores:
            curve = Text(sparkline(scores), style="cyan")
            table.add_row(Text(name, style="dim"), peer.words_of(scores[-1]), curve, words)
    return table


def _facts(peer: Standing) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row(Text("bytes", style="dim"), peer.traffic)
    table.add_row(Text("faults", style="dim"), "" if peer.faults else "none")
    return table


def _state(peer: Standing) -> str:
    return ", ".join(filter(None, [peer.state, peer.attendance]))


def peer_line(peer: Standing) -> str:
    """One peer in one line, for a file."""
    words = [f"{peer.name}: {_state(peer)}"]
    words.append(f"round {peer.told['round']}/{peer.told['rounds']}")
    if peer.scores:
        words.append(f"{peer.told['measure']} {peer.words_of(peer.scores[-1])}")
    if peer.gain:
        words.append(f"{peer.gain} against alone")
    return printable("  ".join([*words, *([peer.sentence] if peer.sentence else [])]))


def peers_table(peers: Sequence[Standing]) -> Table:
    """One line per peer: how far it is, who is there, from whom it learns."""
    table = Table()
    for heading in ("peer", "state", "round", "score", "alone", "learns from", "sent", "to know"):
        table.add_column(heading)
    for peer in peers:
        others = [m for m in peer.neighbours if (m.weight or 0.0) >= 0.005]
        table.add_row(
            _text(peer.name),
            _text(_state(peer)),
            f"{peer.told['round']}/{peer.told['rounds']}",
            peer.words_of(peer.scores[-1]) if peer.scores else "",
            peer.words_of(peer.alone[-1]) if peer.alone and peer.scores else "",
            _text(" ".join(f"{m.name} {m.weight:.0%}" for m in others)),
            human_bytes(peer.told["bytes_sent"]),
            _text("; ".join([*([peer.sentence] if peer.sentence else []), *peer.faults[:1]])),
        )
    return table
