"""Why a member cannot be reached, as far as this machine can find out: it dials the member as the
network does, and says in words what happens. Zenoh tries again and again and says nothing."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import final

from scool.peer.addresses import host_of
from scool.peer.identity import Files

SECONDS = 3.0  # for each step of a connection
ALERT = 1.0  # seconds in which the other end refuses our certificate, if it does
AGAIN = 20.0  # seconds between two looks at the same members

# OpenSSL's numbers of what is wrong with the certificate of the other end
_EXPIRED, _NOT_YET, _WRONG_NAMES, _FOREIGN = 10, 9, (62, 64), (18, 19, 20, 21, 7)
_ALERTS = {
    "EXPIRED": "it takes the certificate of this machine for expired: are both clocks right?",
    "UNKNOWN_CA": "it does not know the authority of this machine's certificate: it has joined "
    "another invite",
}


def probe(address: str, files: Files) -> str:
    """What is wrong with a member at an address; empty where a connection of this run succeeds."""
    host, port = host_of(address), int(address.rpartition(":")[2])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not files.key.exists():
        return f"{files.key} is gone: was the folder moved?"
    try:
        context.load_verify_locations(files.authority)
        context.load_cert_chain(files.leaf, files.key)
        with socket.create_connection((host, port), SECONDS) as plain:
            with context.wrap_socket(plain, server_hostname=host) as link:
                return _after(link, address)
    except socket.gaierror:
        return f"nobody knows the name {host}"
    except ssl.SSLCertVerificationError as error:
        return _about(error, address)
    except ssl.SSLError as error:
        known = (words for mark, words in _ALERTS.items() if mark in (error.reason or ""))
        return next(known, f"what listens at {address} is no peer ({error.reason or 'no TLS'})")
    except ConnectionRefusedError:
        return f"nothing listens at {address}: does `scool peer run` run there?"
    except TimeoutError:
        return f"{address} does not answer: is that machine on, and the port open?"
    except OSError as error:
        return f"{address}: {error.strerror or error}"


def _after(link: ssl.SSLSocket, address: str) -> str:
    """Wait a moment: the other end refuses a certificate after the handshake."""
    link.settimeout(ALERT)
    try:
        return "" if link.recv(1) else f"{address} closes the connection"
    except TimeoutError:  # nothing was refused
        return ""


def _about(error: ssl.SSLCertVerificationError, address: str) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        return "its certificate has expired, or the clock of this machine is wrong"
    if code == _NOT_YET:
        return "its certificate is not valid yet: the clock of this machine is wrong"
    if code in _WRONG_NAMES:
        return f"what listens at {address} has a certificate for another address"
    if code in _FOREIGN:
        return f"what listens at {address} is not of this run: it has joined another invite"
    return f"the certificate at {address} is refused ({error.verify_message})"


@final
class Doubts:
    """Finds out in the background why members do not answer."""

    def __init__(self, look: Callable[[int], str]) -> None:
        self._look = look
        self._found: Mapping[int, str] = {}
        self._at, self._thread = 0.0, threading.Thread()

    def about(self, peers: Sequence[int]) -> dict[int, str]:
        """What is known now of these."""
        if not self._thread.is_alive() and time.monotonic() >= self._at:
            self._at = time.monotonic() + AGAIN
            self._thread = threading.Thread(target=self._find, args=(list(peers),), daemon=True)
            self._thread.start()
        return {peer: words for peer in peers if (words := self._found.get(peer))}

    def _find(self, peers: Sequence[int]) -> None:
        self._found = {peer: self._look(peer) for peer in peers}
