"""What `run.json` may say."""

import json
from typing import Any

from scool.recording.damage import check_format
from scool.recording.lines import (
    COUNT,
    LIST,
    NUMBER,
    OBJECT,
    RUN,
    TEXT,
    TEXTS,
    WHOLE,
    Kind,
    check_kinds,
    or_null,
)
from scool.recording.seals import SEAL, check_seal

FORMAT = "scool-run-2"
OLD = "scool-run-1"
"""Without identity and seal; the manifest came later, too."""

_HEADER: dict[str, Kind] = {
    **dict.fromkeys(("rounds", "rounds_done", "seed"), or_null(COUNT)),
    **dict.fromkeys(("config", "identity", "result", "model"), or_null(OBJECT)),
    **dict.fromkeys(("versions", "hardware"), or_null(OBJECT)),
    **dict.fromkeys(("method", "status", "reason", "started"), or_null(TEXT)),
    "command": or_null(TEXTS),
    "resumed": or_null(LIST),
}
_RESULT: dict[str, Kind] = {
    "method": TEXT,
    **dict.fromkeys(("rounds", "seconds", "bytes_sent", "messages"), or_null(NUMBER)),
}
_INSIDE: dict[str, dict[str, Kind]] = {
    "identity": {"algorithm": OBJECT, "federation": TEXT, "clients": WHOLE},
    "config": {"algorithm": OBJECT, "settings": OBJECT, "method": TEXT},
}


def parse_header(text: str) -> dict[str, Any]:
    """What a `run.json` says.

    Raises:
        ValueError: it is damaged, or of another version; says how.
    """
    try:
        header = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    check_kinds(header, {"format": TEXT}, optional=["format"])
    check_format(header.get("format", OLD), OLD, FORMAT)
    check_kinds(header, _HEADER, optional=_HEADER)
    if header.get("format") == FORMAT or SEAL in header:
        check_kinds(header, {"run": RUN, SEAL: TEXT})
        check_seal(header)
    for name, kinds in _INSIDE.items():
        check_kinds(header.get(name) or {}, kinds, optional=kinds)
    if header.get("result"):
        check_kinds(header["result"], _RESULT)
    for part in header.get("resumed") or []:
        check_kinds(part, {"after_round": WHOLE, "versions": OBJECT})
    return header
