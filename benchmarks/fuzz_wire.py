"""A member with a valid certificate sends rubbish over the real network: `python
benchmarks/fuzz_wire.py --messages 100000`. Nothing may be accepted, nothing may crash or grow.

Half of it is pushed records, mutated after they were signed; half is models, mutated after their
digest was announced. The last line is JSON.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import torch

from scool.peer import identity
from scool.peer.audit import Audit, verify
from scool.peer.identity import Files, Keys
from scool.peer.post import Post, largest_message
from scool.peer.wire import Message, WireError, decode, encode, model_bytes, read_model
from scool.peer.zenoh import ZenohTransport

NAMES = ("ann", "eve")
MODEL = {"w": torch.arange(60.0).view(6, 10), "b": torch.ones(6)}
LARGEST = largest_message(MODEL)
ROUND = 2


def mutated(whole: bytes, rng: Random) -> bytes:
    """Some bytes changed, cut, doubled, inserted or replaced; never the same."""
    while True:
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) or 1)
            kind = rng.randrange(6)
            if kind == 0 and data:
                data[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                del data[at : at + rng.randint(1, 60)]
            elif kind == 2:
                data[at:at] = rng.randbytes(rng.randint(1, 9))
            elif kind == 3:
                data[at:at] = data[: rng.randrange(60)]
            elif kind == 4:  # lengths lie
                data[4:11] = rng.randbytes(7)
            else:
                data[at : at + 8] = rng.choice([b"\xff" * 8, b"\x00" * 8, b"[" * 8, b"1e999999"])
        if bytes(data) != whole:
            return bytes(data)


def resident() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def members(folder: Path, addresses: list[str]) -> tuple[list[ZenohTransport], list[Keys]]:
    """Two members of one run, connected."""
    authority = identity.new_authority("fuzz")
    files = [Files.of(folder / name) for name in NAMES]
    for own, name, address in zip(files, NAMES, addresses, strict=True):
        own.key.parent.mkdir()
        key = identity.new_key()
        identity.write_key(own.key, key)
        wanted = identity.read_request(identity.pem(identity.request(name, address, key)))
        own.leaf.write_bytes(identity.sign_leaf(wanted, *authority))
        own.authority.write_bytes(authority[1])
    leaves = [own.leaf.read_bytes() for own in files]
    keys = [Keys(own.key.read_bytes(), leaves, place) for place, own in enumerate(files)]
    ends = [ZenohTransport("f", i, NAMES, addresses, files[i], LARGEST) for i in range(2)]
    end = time.monotonic() + 20
    while any(len(one.members()) < 2 for one in ends) and time.monotonic() < end:
        time.sleep(0.02)
    return ends, keys


def fuzz(count: int, seed: int, addresses: list[str]) -> dict[str, Any]:
    """What happened to so many messages."""
    rng, began = Random(seed), time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        (ann, eve), keys = members(Path(home), addresses)
        post = Post(ann, "f", 2, LARGEST, keys[0])
        audit = Audit(Path(home), NAMES)
        post.refused = audit.refused
        post.forget(ROUND)
        body = {"model": "0" * 43, "wants": [0, 1]}
        records = [
            encode(Message("f", 1, ROUND, f"{slot}-ready", body, tensors), keys[1])
            for slot, tensors in enumerate(({}, MODEL))
        ]
        model = model_bytes(MODEL)
        why: Counter[str] = Counter()
        before, accepted, at = resident(), 0, []
        for number in range(count // 2):
            data = mutated(records[number % 2], rng)
            eve.offer(f"{ROUND}/{number % 2}-ready", data, push=True)
            try:
                decode(data, "f", keys[0], LARGEST)
                accepted += 1
            except WireError as error:
                why[" ".join(str(error).split()[:4])] += 1
            if number % 50 == 49:
                accepted += _models(post, eve, model, rng)
            if number == count // 4:
                at.append(resident())
        eve.offer("2/9-good", encode(Message("f", 1, ROUND, "9-good", {}, {}), keys[1]), True)
        until = ann.now() + 20
        is_alive = bool(post.hear(ROUND, "9-good", [1], lambda peer: until))
        accepted += len(post.heard(ROUND, "0-ready")) + len(post.heard(ROUND, "1-ready"))
        found = {
            "messages": 2 * (count // 2),
            "accepted": accepted,
            "a right one gets through afterwards": is_alive,
            "MB received": round(post.received / 1e6, 1),
            "MB of memory before": round(before / 1e6, 1),
            "half way": round(at[0] / 1e6, 1),
            "after": round(resident() / 1e6, 1),
            "lines in the audit": verify(Path(home) / "audit.jsonl").lines,
            "seconds": round(time.monotonic() - began, 1),
            "refused because": dict(why.most_common(6)),
        }
        for end_ in (ann, eve):
            end_.close()
    return found


def _models(post: Post, eve: ZenohTransport, model: bytes, rng: Random) -> int:
    """Fifty mutated models under the digests of whole ones; how many were taken."""
    taken = 0
    for _ in range(50):
        data = mutated(model, rng)
        with suppress(WireError):  # under a digest of its own it may be a model with other numbers
            read_model(data, MODEL)
        digest = f"{rng.getrandbits(256):064x}"
        eve.offer(f"model/{digest}", data)
        taken += len(
            list(post.models(ROUND, MODEL, {1: digest}, lambda peer: post.transport.now() + 5))
        )
        eve.withdraw(f"model/{digest}")
    post.sort()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ports", type=int, nargs=2, default=(7481, 7482))
    given = parser.parse_args()
    addresses = [f"127.0.0.1:{port}" for port in given.ports]
    print(json.dumps(fuzz(given.messages, given.seed, addresses), indent=1))


if __name__ == "__main__":
    main()
