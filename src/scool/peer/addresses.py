"""Addresses of members: host and port, which others dial."""

import re

from scool.errors import require


def host_of(address: str) -> str:
    """The host of `host:port`.

    >>> host_of("[::1]:7447"), host_of("a.example.org:7447")
    ('::1', 'a.example.org')
    """
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    is_host = re.fullmatch(r"\[[0-9a-fA-F:.]+\]|[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", host)
    remedy = "give HOST:PORT, e.g. a.example.org:7447 or 192.0.2.7:7447"
    require(is_port and is_host is not None, "address", address, remedy)
    return host.strip("[]")


def check_dialled(address: str) -> None:
    """Refuse an address at which one can listen, and which nobody else can dial.

    Raises:
        ConfigError: it is one, or none at all.
    """
    host = host_of(address)
    remedy = 'give the address that others dial; listen = "0.0.0.0:PORT" is for peer.toml'
    require(host not in ("0.0.0.0", "::"), "address", address, remedy)
    remedy = "give a name that leads to it: links over TLS know IPv6 by names only"
    require(":" not in host, "address", address, remedy)
