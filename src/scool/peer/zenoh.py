"""The network between machines: Eclipse Zenoh in peer mode over TLS, both ends with certificates.

Nothing is found by broadcast: every member listens where the roster says, and the one in the higher
place dials, for ever. Models are pulled, never pushed: a slow reader would queue them without end.
"""

import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, final

import zenoh

from scool.errors import RunError, ScoolError
from scool.peer.identity import Files
from scool.peer.probe import probe
from scool.peer.transport import Answer, Arrival, Leaving, unrecorded
from scool.peer.watchdog import LEASE, Watchdog

MOST_WAITING = 10_000  # arrivals that nobody has read yet; more are dropped, and fetched later
OWN = ["put", "delete", "reply", "declare_queryable", "liveliness_token"]
"""What a member may say under its own keys, and nobody else."""
OF_ALL = ["declare_subscriber", "liveliness_query", "declare_liveliness_subscriber"]


@final
class ZenohTransport:
    """See `transport.Transport` for what each verb promises."""

    def __init__(
        self,
        run: str,
        place: int,
        names: Sequence[str],
        addresses: Sequence[str],
        files: Files,
        largest: int,
        dial: Sequence[str] | None = None,
    ) -> None:
        """`names` are those in the members' certificates, `largest` bounds the bytes of a message,
        `dial` has the addresses of earlier members where they are not those on which they listen.

        Raises:
            RunError: the address cannot be listened on.
        """
        self.place = place
        self.leaving: Leaving = unrecorded
        self._addresses, self._files = addresses, files
        self._others = set(range(len(names))) - {place}
        self._root = f"scool/{run}"
        self._inbox: deque[Arrival] = deque(maxlen=MOST_WAITING)
        self._offers: dict[str, bytes] = {}
        self._tokens: set[str] = set()
        self._changed, self._news = threading.Condition(), 0
        self._seen = 0
        self._dial = list(addresses[:place] if dial is None else dial)
        self._about = (names, addresses[place], files, largest)
        self._watch = Watchdog(lambda peer: probe(self._dial[peer], files))
        self._open()

    def _open(self) -> None:
        names, address, files, largest = self._about
        config = _config(self._root, self.place, names, address, self._dial, files, largest)
        try:
            self._session = zenoh.open(zenoh.Config.from_json5(json.dumps(config)))
        except zenoh.ZError as error:
            raise RunError(_cannot_listen(address, str(error))) from error
        mine = f"{self._root}/{self.place}"
        self._held: list[Any] = [
            self._session.declare_queryable(f"{mine}/for/**", self._answer),
            self._session.declare_subscriber(f"{self._root}/*/on/**", self._receive),
            self._session.liveliness().declare_subscriber(
                f"{self._root}/*/here/*", self._notice, history=True
            ),
            # A number per start: else a restart within one lease shows life before the old death.
            self._session.liveliness().declare_token(f"{mine}/here/{uuid.uuid4().hex}"),
        ]

    # ------------------------------------------------------------------ called by zenoh's threads

    def _answer(self, query: zenoh.Query) -> None:
        asked = str(query.key_expr)
        asker, _, key = asked.partition("/for/")[2].partition("/")
        data = self._offers.get(key)
        if data is None or not asker.isdigit():
            return
        with suppress(ScoolError):  # what cannot be written down does not leave
            self.leaving({int(asker)}, key, data)
            query.reply(asked, data)

    def _receive(self, sample: zenoh.Sample) -> None:
        sender, _, key = str(sample.key_expr).removeprefix(f"{self._root}/").partition("/on/")
        if sender.isdigit() and int(sender) != self.place:
            self._inbox.append(Arrival(int(sender), key, sample.payload.to_bytes()))
            self._tell()

    def _notice(self, sample: zenoh.Sample) -> None:
        token = str(sample.key_expr).removeprefix(f"{self._root}/")
        if sample.kind == zenoh.SampleKind.PUT:
            self._tokens.add(token)
        else:
            self._tokens.discard(token)
        self._tell()

    def _tell(self) -> None:
        with self._changed:
            self._news += 1
            self._changed.notify_all()

    # ------------------------------------------------------------------ the verbs

    def now(self) -> float:
        return time.monotonic()

    def offer(self, key: str, data: bytes, push: bool = False) -> None:
        self._offers[key] = data
        if push:
            self.leaving(self._others, key, data)  # whoever is connected, seen or not
            self._session.put(
                f"{self._root}/{self.place}/on/{key}",
                data,
                congestion_control=zenoh.CongestionControl.BLOCK,
            )

    def withdraw(self, key: str) -> None:
        self._offers.pop(key, None)

    def fetch(self, wanted: Sequence[tuple[int, str]], until: float) -> Iterator[Answer]:
        answers: SimpleQueue[Answer] = SimpleQueue()
        open_ = dict.fromkeys(wanted)
        for peer, key in open_:
            self._ask(peer, key, max(0.05, until - self.now()), answers)
        while open_:
            try:
                answer = answers.get(timeout=max(0.0, until - self.now()))
            except Empty:
                yield from (Answer(peer, key, None) for peer, key in open_)
                return
            if (answer.sender, answer.key) in open_:
                del open_[answer.sender, answer.key]
                yield answer

    def _ask(self, peer: int, key: str, seconds: float, answers: "SimpleQueue[Answer]") -> None:
        def take(reply: zenoh.Reply) -> None:
            if reply.ok is not None:
                answers.put(Answer(peer, key, reply.ok.payload.to_bytes()))

        def end() -> None:  # after the reply, or without one
            answers.put(Answer(peer, key, None))

        handler = zenoh.handlers.Callback(take, end)
        asked = f"{self._root}/{peer}/for/{self.place}/{key}"
        self._session.get(asked, handler, timeout=seconds)

    def arrivals(self) -> list[Arrival]:
        found: list[Arrival] = []
        while self._inbox:
            found.append(self._inbox.popleft())
        return found

    def members(self) -> frozenset[int]:
        places = (token.partition("/")[0] for token in list(self._tokens))
        return frozenset({self.place, *(int(place) for place in places if place.isdigit())})

    def wait(self, until: float) -> None:
        dark = set(range(self.place)) - self.members()
        if self._watch.is_stuck(dark, self.now()):
            self._reopen()
        with self._changed:
            if self._news == self._seen:
                self._changed.wait(min(max(0.0, until - self.now()), 3600.0))
            self._seen = self._news

    def _reopen(self) -> None:
        """Begin anew with the network, and with what is on offer.

        Raises:
            RunError: another program has taken the port.
        """
        self._session.close()
        self._tokens.clear()
        last = self.now() + LEASE
        while True:
            try:
                return self._open()
            except RunError:  # the port may take a moment to be free
                if self.now() >= last:
                    raise
                time.sleep(0.1)

    def trouble(self, peer: int) -> str:
        return "" if peer in self.members() else probe(self._addresses[peer], self._files)

    def close(self) -> None:
        self._session.close()


def _cannot_listen(address: str, why: str) -> str:
    """What a person can do about it."""
    port = address.rpartition(":")[2]
    elsewhere = f'say in peer.toml where to listen, e.g. listen = "0.0.0.0:{port}"'
    if "in use" in why:
        return (
            f"cannot listen on {address}: another program has the port, perhaps another "
            "peer. End it, and start again"
        )
    if "lookup" in why or "assign" in why:
        return (
            f"cannot listen on {address}: it is no address of this machine. Behind a router or in "
            f"a container {elsewhere}"
        )
    return f"cannot listen on {address} ({why.split(' at /')[0][:200]}): {elsewhere}"


def _config(
    root: str,
    place: int,
    names: Sequence[str],
    listen: str,
    dial: Sequence[str],
    files: Files,
    largest: int,
) -> dict[str, Any]:
    """Peer mode, TLS only, no discovery; each certificate may speak under its own keys alone."""
    key, leaf, authority = (str(path.absolute()) for path in files)
    tls = {
        "root_ca_certificate": authority,
        "listen_private_key": key,
        "listen_certificate": leaf,
        "connect_private_key": key,
        "connect_certificate": leaf,
        "enable_mtls": True,
        "verify_name_on_connect": True,
        "close_link_on_expiration": True,
    }
    return {
        "mode": "peer",
        "listen": {"endpoints": [f"tls/{listen}"], "exit_on_failure": True},
        "connect": {
            "endpoints": [f"tls/{address}" for address in dial],
            "timeout_ms": -1,  # try for ever
            "exit_on_failure": False,
            "retry": {
                "period_init_ms": 500,
                "period_max_ms": 2000,
                "period_increase_factor": 1.5,
            },
        },
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "transport": {
            "link": {
                "protocols": ["tls"],
                "tls": tls,
                "tx": {
                    "lease": int(1000 * LEASE),
                    "queue": {"congestion_control": {"block": {"wait_before_close": 60_000_000}}},
                },
                "rx": {"max_message_size": largest},
            },
            "shared_memory": {"enabled": False},
        },
        "adminspace": {"enabled": False},
        "access_control": _rights(root, place, names),
    }


def _rights(root: str, place: int, names: Sequence[str]) -> dict[str, Any]:
    """Who may send what to this member: under its own keys all, elsewhere only questions, which
    name the certificate's owner, so that the audit knows who asked."""

    def rule(id: str, flow: str, messages: list[str], keys: list[str]) -> dict[str, Any]:
        return {
            "id": id,
            "flows": [flow],
            "permission": "allow",
            "messages": messages,
            "key_exprs": keys,
        }

    others = [other for other in range(len(names)) if other != place]
    rules = [
        rule("ask", "ingress", OF_ALL, [f"{root}/**"]),
        rule("say", "egress", [*OWN, *OF_ALL, "query"], [f"{root}/**"]),
        *(rule(f"own-{i}", "ingress", OWN, [f"{root}/{i}/**"]) for i in others),
        *(rule(f"by-{i}", "ingress", ["query"], [f"{root}/*/for/{i}/**"]) for i in others),
    ]
    subjects = [{"id": f"member-{i}", "cert_common_names": [names[i]]} for i in others]
    policies = [
        {"rules": ["ask", "say", f"own-{i}", f"by-{i}"], "subjects": [f"member-{i}"]}
        for i in others
    ]
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }
