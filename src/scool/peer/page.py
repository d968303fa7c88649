"""How peers are doing, as a page for a browser on the same machine. It can be looked at only: the
server listens on loopback, answers GET and HEAD of one address, and sends no program."""

import http.server
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

from scool.errors import RunError, ScoolError, printable
from scool.peer.standing import Standing

HOST = "127.0.0.1"
EVERY = 2  # seconds after which a browser looks again
WIDE, HIGH = 480, 80  # of the curves, in pixels
SHOWN = 5  # of the newest faults
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
STYLE = """
:root { color-scheme: light dark; --line: #9994; --own: #0072b2; --alone: #d55e00; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 44rem; margin: 1.5rem auto; padding: 0 1rem }
section { border: 1px solid var(--line); border-radius: 6px; padding: .2rem 1rem 1rem; margin: 1rem 0 }
h1 { font-size: 1.15rem } h2 { font-size: 1.05rem; margin-bottom: .2rem }
table { border-collapse: collapse; width: 100% } td { padding: .15rem .5rem .15rem 0 }
td.bar { width: 45% } td.bar div { background: var(--own); height: .8rem; min-width: 1px }
td.number { text-align: right } .away { opacity: .55 } .look { border-left: 4px solid var(--alone);
padding-left: .6rem } svg { width: 100%; height: auto } polyline { fill: none; stroke-width: 2 }
.own { stroke: var(--own) } .alone { stroke: var(--alone); stroke-dasharray: 5 4 }
dt { opacity: .7 } dl { display: grid; grid-template-columns: max-content auto; gap: 0 1rem } dd { margin: 0 }
"""  # noqa: E501


def peers_page(peers: Sequence[Standing]) -> str:
    """The whole page; whatever came from others is escaped."""
    sections = "".join(_section(peer) for peer in peers)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="refresh" content="{EVERY}"><title>scool peer</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>'
        f"<body><h1>scool peer</h1>{sections}</body></html>"
    )


def _plain(words: object) -> str:
    return escape(printable(str(words)))


def _section(peer: Standing) -> str:
    sentence = f'<p class="look">{_plain(peer.sentence)}</p>' if peer.sentence else ""
    rows = "".join(_row(peer, *member) for member in peer.neighbours)
    facts = {"bytes": peer.traffic, "faults": "none" if not peer.faults else ""}
    said = "".join(f"<dt>{name}</dt><dd>{_plain(words)}</dd>" for name, words in facts.items())
    faults = "".join(f"<li>{_plain(words)}</li>" for words in peer.faults[:SHOWN])
    return (
        f"<section><h2>{_plain(peer.title)}</h2><p>{_plain(peer.state)}, {_plain(peer.progress)}"
        f"</p>{sentence}<table>{rows}</table>{_scores(peer)}<dl>{said}</dl>"
        f"{f'<ul>{faults}</ul>' if faults else ''}</section>"
    )


def _row(peer: Standing, name: str, weight: float | None, where: str) -> str:
    share, number = (0.0, "") if weight is None else (weight, f"{weight:.0%}")
    you = " (this one)" if name == peer.name else ""
    width = f"{100 * min(1.0, max(0.0, share)):.1f}%"
    bar = f'<div style="width:{width}"></div>' if share > 0 else ""
    kind = "away" if where in ("away", "left for good") else "here"
    return (
        f'<tr class="{kind}"><td>{_plain(name + you)}</td>'
        f'<td>{_plain(where)}</td><td class="bar">{bar}</td><td class="number">{number}</td></tr>'
    )


def _scores(peer: Standing) -> str:
    """The own score and that of training alone, in numbers and as curves."""
    if not peer.scores:
        return ""
    words = f"{peer.told['measure']} {peer.words_of(peer.scores[-1])}"
    if peer.alone:
        words += f"; alone (dashed), {peer.alone_after}: {peer.words_of(peer.alone[-1])}"
    words += f" ({peer.gain})" if peer.gain else ""
    known = [s for s in [*peer.scores, *peer.alone] if s is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    size, last = (high - low) or 1.0, max(1, len(peer.scores) - 1)

    def line(kind: str, scores: Sequence[float | None]) -> str:
        points = " ".join(
            f"{WIDE * n / last:.1f},{HIGH - (HIGH - 4) * (s - low) / size - 2:.1f}"
            for n, s in enumerate(scores)
            if s is not None
        )
        return f'<polyline class="{kind}" points="{points}"/>'

    curves = line("own", peer.scores) + line("alone", peer.alone)
    view = f'<svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="score by round">'
    return f"<p>{_plain(words)}</p>{view}{curves}</svg>"


@contextmanager
def serving(port: int, look: Callable[[], str]) -> Iterator[str]:
    """Serve a page on loopback while the `with` block runs.

    Args:
        port: 0 takes a free one.
        look: makes the page again for each request.

    Returns:
        its address.

    Raises:
        RunError: the port is taken.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        server_version, sys_version = "scool", ""
        timeout = 10.0  # seconds for a request that does not end

        def do_GET(self) -> None:
            self._answer(True)

        def do_HEAD(self) -> None:
            self._answer(False)

        def _answer(self, with_body: bool) -> None:
            # another name would be a page elsewhere that has its own name lead here
            if self.headers.get("Host") not in known:
                self.send_error(403, "this page is for this machine only")
            elif self.path != "/":
                self.send_error(404)
            else:
                self._send(with_body)

        def _send(self, with_body: bool) -> None:
            try:
                code, body = 200, look().encode()
            except ScoolError as error:
                code, body = 503, f"<p>{_plain(error)}</p>".encode()
            self.send_response(code)
            for name, value in {**HEADERS, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the terminal shows peers."""

    try:
        server = http.server.ThreadingHTTPServer((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        raise RunError(
            f"the page cannot be at port {port} ({error}): give another --page, or 0 for a free one"
        ) from error
    server.daemon_threads = True
    port = server.server_address[1]
    known = {f"{name}:{port}" for name in (HOST, "localhost")}
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
