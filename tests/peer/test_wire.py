"""What is not exactly right on the wire is refused, in words, before anything is used."""

import importlib.util
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from peer.test_zenoh import free_addresses
from scool.errors import ConfigError
from scool.peer import identity
from scool.peer.audit import Audit
from scool.peer.memory import MemoryNetwork, MemoryTransport
from scool.peer.post import Post, Spot
from scool.peer.wire import (
    Message,
    WireError,
    decode,
    digest_of,
    encode,
    is_repeated,
    model_bytes,
    read_model,
)
from scool.peer.words import (
    UNREADABLE,
    Ready,
    losses_body,
    read_losses,
    read_row,
    row_body,
)

_path = Path(__file__).parents[2] / "benchmarks" / "fuzz_wire.py"
_spec = importlib.util.spec_from_file_location("fuzz_wire", _path)
assert _spec and _spec.loader
fuzz_wire = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fuzz_wire)

LARGEST = 10_000
TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([1, 2])}
MESSAGE = Message("run", 2, 7, "0-ready", {"wants": [0, 3]}, TENSORS)


class Xor:
    """A signature that anybody could make, but that changes with the header."""

    def sign(self, header: bytes) -> bytes:
        return bytes([sum(header) % 256, header[len(header) // 2]])

    def is_from(self, sender: int, header: bytes, signature: bytes) -> bool:
        return sender == 2 and signature == self.sign(header)


def test_a_message_comes_back_as_it_was() -> None:
    data = encode(MESSAGE, Xor())
    assert data == encode(MESSAGE, Xor())
    found = decode(data, "run", Xor(), LARGEST)
    assert found[:5] == MESSAGE[:5] and found.key == "7/0-ready"
    assert all(torch.equal(found.tensors[name], t) for name, t in TENSORS.items())


def test_what_is_changed_on_the_way_is_refused() -> None:
    """20,000 mutations: bytes changed, cut, doubled and inserted."""
    rng, whole = Random(0), encode(MESSAGE, Xor())
    for _ in range(20_000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            kind = rng.randrange(4)
            if kind == 0:
                data[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                del data[at : at + rng.randint(1, 40)]
            elif kind == 2:
                data[at:at] = rng.randbytes(rng.randint(1, 9))
            else:
                data[at:at] = data[: rng.randrange(60)]
            data = data or bytearray(b"x")
        if bytes(data) != whole:
            try:
                found = decode(bytes(data), "run", Xor(), LARGEST)
            except WireError:
                continue
            assert found[:5] == MESSAGE[:5]  # only where the weak signature collides


def header_with(place: int, value: object) -> bytes:
    """A well-formed message whose header says something else."""
    data = encode(MESSAGE, None)
    length = int.from_bytes(data[4:6], "big")
    fields = json.loads(b"[" + data[11 : 11 + length])
    fields[place : place + 1] = [value]
    header = json.dumps(fields).encode()[1:]
    return data[:4] + len(header).to_bytes(2, "big") + data[6:11] + header + data[11 + length :]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "of 0 bytes"),
        (b"SCP2" + bytes([0, 2]) + bytes(5) + b"{x", "header is not JSON"),
        (b"X" * 64, "lengths do not fit"),
        (encode(MESSAGE, None) + b"x", "lengths do not fit"),
        (encode(MESSAGE._replace(tensors={"a": torch.zeros(9999)}), None), "at most 10000"),
        (header_with(1, "7"), "'round' is not a int"),
        (header_with(1, True), "'round' is not a int"),
        (header_with(5, 1), "other fields"),
        (header_with(4, "0" * 43), "do not match their checksum"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words):
        decode(data, "run", None, LARGEST)


def test_a_forged_name_is_refused() -> None:
    with pytest.raises(WireError, match="in the name of peer 3 with a wrong signature"):
        decode(encode(MESSAGE._replace(sender=3), Xor()), "run", Xor(), LARGEST)


def test_a_record_of_another_run_is_refused() -> None:
    """The run does not travel; it is signed."""
    data = encode(MESSAGE, Xor())
    assert b"run" not in data and decode(data, "run", Xor(), LARGEST).run == "run"
    for odd in (data, encode(MESSAGE._replace(run="other"), Xor())):
        with pytest.raises(WireError, match="with a wrong signature"):
            decode(odd, "other" if odd is data else "run", Xor(), LARGEST)


def test_only_what_a_return_forgets_may_be_missing_from_a_repeated_record() -> None:
    def said(**body: object) -> Message:
        return decode(encode(Message("run", 1, 0, "a", body), None), "run", None, LARGEST)

    assert is_repeated(said(x=1, of="d"), said(x=1), "of")
    assert is_repeated(said(x=1), said(x=1, of="d"), "of")
    assert not is_repeated(said(x=1, of="d"), said(x=2), "of")
    assert not is_repeated(said(x=1, of="d"), said(x=1, of="e"), "of")
    assert not is_repeated(said(x=1), said(x=2), "of")


def test_a_record_is_short() -> None:
    """Of which the signature of a real key is 72 bytes more."""
    said = Message("0" * 32, 3, 12, "1-losses", losses_body({i: i / 3 for i in range(8)}))
    assert len(encode(said, None)) < 200
    assert len(encode(said._replace(body=Ready(digest_of(b"x")).body), None)) < 100


def test_numbers_come_back_to_the_bit() -> None:
    losses = {0: 0.1 + 0.2, 70_000: float("inf"), 3: 5e-324}
    assert read_losses(losses_body(losses)) == losses
    row = torch.tensor([0.1, torch.nan, -0.0, 1 / 3])
    assert read_row(row_body(row), row).view(torch.int32).tolist() == row.view(torch.int32).tolist()
    for odd in ({"losses": "AAAA"}, {"losses": "?"}, {"losses": 7}, {"losses": ["x"]}, {}):
        with pytest.raises(UNREADABLE):
            read_losses(odd)
    for odd in ({"row": "AAAA"}, row_body(row[:3]), row_body(row / 0), {"row": None}):
        with pytest.raises(UNREADABLE):
            read_row(odd, row)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"w": torch.zeros(2, 3)}, None),
        ({"v": torch.zeros(2, 3)}, "of other names, shapes or types than agreed"),
        ({"w": torch.zeros(3, 2)}, "of other names, shapes or types"),
        ({"w": torch.zeros(2, 3).double()}, "of other names, shapes or types"),
        ({"w": torch.zeros(2, 3).int()}, "of other names, shapes or types"),
        ({"w": torch.full((2, 3), torch.inf)}, "not finite"),
    ],
)
def test_only_the_agreed_model_is_a_model(model: dict, words: str | None) -> None:
    like = {"w": torch.ones(2, 3)}
    if words is None:
        assert torch.equal(read_model(model_bytes(model), like)["w"], model["w"])
        return
    with pytest.raises(WireError, match=words):
        read_model(model_bytes(model), like)
    with pytest.raises(WireError, match=r"bytes, where 32 are right\)"):
        read_model(model_bytes(model)[:-1], like)


def talk(says: list[bytes], keys: list[str], admit: Any = None) -> Post:
    """The desk of peer 0 after peer 1 pushed these bytes."""

    def speak(me: MemoryTransport) -> None:
        for key, data in zip(keys, says, strict=True):
            me.offer(key, data, push=True)

    def listen(me: MemoryTransport) -> Post:
        post = Post(me, "run", 2, LARGEST)
        post.admit = admit or post.admit
        while me.now() < 1.0:
            me.wait(1.0)
        post.sort()
        return post

    return MemoryNetwork(2).run({0: listen, 1: speak})[0]


def record(sender: int = 1, run: str = "run", round: int = 0, **body: int) -> bytes:
    return encode(Message(run, sender, round, "a", body, {}), None)


def test_two_different_records_for_a_slot_are_noted_and_the_first_counts() -> None:
    post = talk([record(x=1), record(x=2)], ["0/a", "0/a"])
    assert post.hear(0, "a", [1])[1].body == {"x": 1}
    assert "peer 1 contradicts itself" in post.problems[0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (record(sender=0), "says it is another"),
        (record(round=1), "says it is another"),
        (b"noise" * 9, "lengths do not fit"),
    ],
)
def test_a_wrong_record_is_dropped_and_noted(data: bytes, words: str) -> None:
    post = talk([data], ["0/a"])
    assert post.hear(0, "a", [1], until=lambda peer: 0.0) == {}
    assert words in post.problems[0]


def test_a_record_of_a_round_that_is_over_is_dropped() -> None:
    """A replay: right in every respect, and too late. So is one from far ahead."""

    def listen(me: MemoryTransport) -> Post:
        post = Post(me, "run", 2, LARGEST)
        post.forget(20)
        while me.now() < 1.0:
            me.wait(1.0)
        post.sort()
        return post

    def speak(me: MemoryTransport) -> None:
        for round in (0, 16, 17, 23, 24, 1_000_000):
            me.offer(f"{round}/a", record(round=round), push=True)

    post = MemoryNetwork(2).run({0: listen, 1: speak})[0]
    assert [t for t in range(30) if post.heard(t, "a")] == [17, 23]
    assert not post.heard(1_000_000, "a")


def test_both_records_of_a_contradiction_are_kept_as_proof(tmp_path: Path) -> None:
    """Anybody with the certificate of the one who signed both can check them."""
    keys = identity.new_key()
    identity.write_key(tmp_path / "key", keys)
    authority = identity.new_authority("test")
    wanted = identity.read_request(identity.pem(identity.request("bob", "localhost:1", keys)))
    leaf = identity.sign_leaf(wanted, *authority)
    bob = identity.Keys((tmp_path / "key").read_bytes(), [leaf, leaf], 1)
    said = [encode(Message("run", 1, 0, "a", {"x": x}, {}), bob) for x in (1, 2)]

    def speak(me: MemoryTransport) -> None:
        for data in said:
            me.offer("0/a", data, push=True)

    def listen(me: MemoryTransport) -> None:
        post = Post(me, "run", 2, LARGEST, bob)
        post.refused = Audit(tmp_path, ("ann", "bob")).refused
        while me.now() < 1.0:
            me.wait(1.0)
        post.sort()

    MemoryNetwork(2).run({0: listen, 1: speak})
    [line] = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    proofs = [bytes.fromhex(found) for found in line["evidence"]]
    assert len(proofs) == 2 and "contradicts itself" in line["why"]
    for proof in proofs:
        end = proof.index(b'""]') + 3
        assert proof.startswith(b'["run",1,0,"a",{"x":') and bob.is_from(
            1, proof[:end], proof[end:]
        )


def test_rubbish_over_the_real_network_is_not_accepted() -> None:
    pytest.importorskip("zenoh", reason="pip install scool[peer]")
    found = fuzz_wire.fuzz(2000, 1, free_addresses(2))
    assert found["accepted"] == 0 and found["a right one gets through afterwards"]


def test_a_flood_of_records_does_not_grow() -> None:
    said = [encode(Message("run", 1, t, f"{n}", {}, {}), None) for t in (0, 9) for n in range(99)]
    post = talk(said, [f"{t}/{n}" for t in (0, 9) for n in range(99)])
    assert len(post._heard) <= 65 and post.spots == {1: Spot(9)}


def test_another_model_than_announced_is_left_out() -> None:
    def speak(me: MemoryTransport) -> None:
        me.offer("model/" + "0" * 43, model_bytes(TENSORS))

    def listen(me: MemoryTransport) -> list:
        post = Post(me, "run", 2, LARGEST)
        found = list(post.models(0, TENSORS, {1: "0" * 43}, until=lambda peer: 5.0))
        assert "peer 1 sent another model than it announced" in post.problems[0]
        return found

    assert MemoryNetwork(2).run({0: listen, 1: speak})[0] == []


def test_who_has_not_signed_the_agreement_is_not_greeted() -> None:
    def refuse(peer: int, body: object) -> None:
        raise ConfigError(f"{peer} has not signed")

    hello = encode(Message("run", 1, -1, "hello", {"signature": "00"}, {}), None)
    post = talk([hello], ["-1/hello"], admit=refuse)
    assert not post.heard(-1, "hello") and post.problems[0] == "1 has not signed"
