"""The real network on loopback: who may say what, and what happens when a peer goes."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("zenoh", reason="pip install scool[peer]")
pytest.importorskip("cryptography", reason="pip install scool[peer]")

from scool.errors import RunError
from scool.peer import identity
from scool.peer.identity import Files
from scool.peer.probe import probe
from scool.peer.zenoh import ZenohTransport

NAMES = ("ann", "bob", "cat")
LARGEST = 100_000


def free_addresses(count: int) -> list[str]:
    """Ports of loopback that nobody uses now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    return addresses


def issue(
    folder: Path, name: str, address: str, authority: tuple[Any, bytes], days: float = 30
) -> Files:
    folder.mkdir()
    files, key = Files.of(folder), identity.new_key()
    identity.write_key(files.key, key)
    wanted = identity.read_request(identity.pem(identity.request(name, address, key)))
    files.leaf.write_bytes(identity.sign_leaf(wanted, *authority, days=days))
    files.authority.write_bytes(authority[1])
    return files


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether it came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Three members of one run in this process, all connected; and what it takes to add more."""
    tmp, addresses = tmp_path_factory.mktemp("zenoh"), free_addresses(3)
    authority = identity.new_authority("test")
    files = [
        issue(tmp / name, name, address, authority)
        for name, address in zip(NAMES, addresses, strict=True)
    ]
    members = [ZenohTransport("r", i, NAMES, addresses, files[i], LARGEST) for i in (2, 1, 0)][::-1]
    assert wait_for(lambda: all(len(member.members()) == 3 for member in members))
    yield members, addresses, authority, tmp
    for member in members:
        member.close()


def got(member: ZenohTransport, key: str) -> bool:
    """Whether something arrives under a key."""
    return wait_for(lambda: any(arrival.key == key for arrival in member.arrivals()))


def test_what_is_pushed_arrives_and_what_is_offered_is_fetched(world: Any) -> None:
    (ann, bob, cat), *_ = world
    ann.offer("1/a", b"row", push=True)
    assert got(bob, "1/a") and got(cat, "1/a")
    ann.offer("model/x", b"m" * 90_000)
    wanted = [(0, "model/x"), (0, "1/a"), (0, "nothing"), (1, "nothing")]
    found = {answer[:2]: answer.data for answer in cat.fetch(wanted, cat.now() + 5)}
    assert found == dict(zip(wanted, [b"m" * 90_000, b"row", None, None], strict=True))
    ann.withdraw("model/x")
    assert next(cat.fetch([(0, "model/x")], cat.now() + 5)).data is None


def test_nobody_speaks_under_the_keys_of_another(world: Any) -> None:
    """Neither pushes, nor answers, nor life: the other side drops it by the certificate."""
    (ann, bob, cat), *_ = world
    before = ann.members()
    cat._session.put("scool/r/1/on/1/forged", b"x")
    asked = ("scool/r/1/for/**", "scool/r/1/for/0/of-bob", "scool/**")
    fakes = [
        cat._session.declare_queryable(key, lambda q: q.reply(q.key_expr, b"x")) for key in asked
    ]
    token = cat._session.liveliness().declare_token("scool/r/7/here/forged")
    cat.offer("1/after", b"row", push=True)
    assert got(ann, "1/after") and got(bob, "1/after")
    assert not any(arrival.key == "1/forged" for arrival in ann.arrivals() + bob.arrivals())
    assert next(ann.fetch([(1, "1/of-bob")], ann.now() + 1)).data is None
    assert ann.members() == before
    for fake in fakes:
        fake.undeclare()
    token.undeclare()


def test_who_asks_is_known_by_the_certificate(world: Any) -> None:
    """So the audit names who got what; nobody fetches in the name of another."""
    (ann, bob, cat), *_ = world
    left: list[tuple] = []
    ann.leaving = lambda to, key, data: left.append((set(to), key, data))
    ann.offer("asked", b"row")
    answers: list[bytes] = []
    cat._session.get(
        "scool/r/0/for/1/asked", lambda r: answers.append(r.ok.payload.to_bytes()), timeout=0.5
    )
    assert next(bob.fetch([(0, "asked")], bob.now() + 5)).data == b"row"
    assert not wait_for(lambda: bool(answers), seconds=0.6)
    ann.offer("pushed", b"all", push=True)
    assert left == [({1}, "asked", b"row"), ({1, 2}, "pushed", b"all")]


def test_a_message_above_the_limit_does_not_arrive_and_the_link_stays(world: Any) -> None:
    (ann, _, cat), *_ = world
    ann.offer("big", b"x" * 20 * LARGEST)
    assert next(cat.fetch([(0, "big")], cat.now() + 1)).data is None
    ann.offer("small", b"x")
    assert wait_for(lambda: next(cat.fetch([(0, "small")], cat.now() + 1)).data == b"x")


def test_a_certificate_of_another_authority_does_not_get_in(world: Any) -> None:
    (ann, bob, _), addresses, _, tmp = world
    authority = identity.new_authority("test")  # of the same name
    own = [*addresses[:2], *free_addresses(1)]
    files = issue(tmp / "foreign", "cat", own[2], authority)
    stranger = ZenohTransport("r", 2, NAMES, own, files, LARGEST)
    stranger.offer("1/strange", b"x", push=True)
    time.sleep(1.0)
    assert stranger.members() == {2}
    assert not any(arrival.key == "1/strange" for arrival in ann.arrivals() + bob.arrivals())
    stranger.close()


def test_without_a_certificate_nobody_gets_in(world: Any) -> None:
    """Neither over TLS without one, nor in plain words; and the members do not mind."""
    (ann, bob, _), addresses, *_ = world
    host, port = addresses[0].split(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, int(port)), 5) as plain:
        with pytest.raises((ssl.SSLError, ConnectionError)), context.wrap_socket(plain) as link:
            if not link.recv(1):
                raise ConnectionError("closed")
    with socket.create_connection((host, int(port)), 5) as plain:
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n" * 99)
        with suppress(ConnectionError):
            assert not plain.recv(99)[:4].startswith(b"HTTP")
    ann.offer("1/unharmed", b"row", push=True)
    assert got(bob, "1/unharmed")


def test_nobody_dials_who_has_not_the_address_in_its_certificate(tmp_path: Path) -> None:
    authority, addresses = identity.new_authority("test"), free_addresses(2)
    files = [
        issue(tmp_path / "ann", "ann", "elsewhere.example.org:1", authority),
        issue(tmp_path / "bob", "bob", addresses[1], authority),
    ]
    ends = [ZenohTransport("r", i, NAMES[:2], addresses, files[i], LARGEST) for i in range(2)]
    time.sleep(1.2)  # two tries
    assert [end.members() for end in ends] == [{0}, {1}]
    for end in ends:
        end.close()


def test_a_link_ends_when_a_certificate_expires(tmp_path: Path) -> None:
    authority, addresses = identity.new_authority("test"), free_addresses(2)
    files = [issue(tmp_path / "ann", "ann", addresses[0], authority)]
    files.append(issue(tmp_path / "bob", "bob", addresses[1], authority, days=4 / 86400))
    ends = [ZenohTransport("r", i, NAMES[:2], addresses, files[i], LARGEST) for i in range(2)]
    assert wait_for(lambda: all(len(end.members()) == 2 for end in ends), seconds=3.8)
    assert wait_for(lambda: ends[0].members() == {0}, seconds=5)
    for end in ends:
        end.close()


def test_a_newcomer_gets_in_where_its_authority_is_known_and_speaks_for_itself_alone(
    tmp_path: Path,
) -> None:
    """Its certificate is of another authority, which an amendment adds."""
    addresses, first, second = free_addresses(3), *(identity.new_authority("r") for _ in "ab")
    files = [
        issue(tmp_path / name, name, address, authority)
        for name, address, authority in zip(NAMES, addresses, (first, first, second), strict=True)
    ]
    files[2].authority.write_bytes(first[1] + second[1])
    ann, bob = (ZenohTransport("r", i, NAMES[:2], addresses, files[i], LARGEST) for i in range(2))
    cat = ZenohTransport("r", 2, NAMES, addresses, files[2], LARGEST)
    assert wait_for(lambda: bob.members() == {0, 1}) and not wait_for(
        lambda: cat.members() != {2} or 2 in ann.members(), seconds=1.0
    )
    ann.close()
    files[0].authority.write_bytes(first[1] + second[1])
    ann = ZenohTransport("r", 0, NAMES, addresses, files[0], LARGEST)
    assert wait_for(lambda: ann.members() == {0, 1, 2} and bob.members() == {0, 1})
    assert cat.members() == {0, 2}
    cat._session.put("scool/r/1/on/1/forged", b"x")
    cat.offer("1/own", b"row", push=True)
    assert wait_for(lambda: bool(ann._inbox))
    assert [(arrival.sender, arrival.key) for arrival in ann.arrivals()] == [(2, "1/own")]
    for end in (ann, bob, cat):
        end.close()


def test_a_port_that_is_taken_is_said(world: Any) -> None:
    _, addresses, authority, tmp = world
    files = issue(tmp / "second", "ann", addresses[0], authority)
    with pytest.raises(RunError, match=f"cannot listen on {addresses[0]}: another program has"):
        ZenohTransport("r", 0, NAMES, addresses, files, LARGEST)


def test_why_a_member_does_not_answer_is_found_out(world: Any) -> None:
    members, addresses, _, tmp = world
    own, nobody = Files.of(tmp / "bob"), free_addresses(1)[0]
    assert members[1].trouble(0) == "" == probe(addresses[0], own)
    assert "nothing listens at" in probe(nobody, own)
    foreign = issue(tmp / "other", "bob", addresses[1], identity.new_authority("other"))
    assert "it has joined another invite" in probe(addresses[0], foreign)
    with socket.create_server(("127.0.0.1", 0)) as plain:
        address = f"127.0.0.1:{plain.getsockname()[1]}"

        def answer() -> None:
            with plain.accept()[0] as link:
                link.sendall(b"HTTP/1.0 400\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert "is no peer" in probe(address, own)
        thread.join()


def test_a_peer_that_goes_is_missed_at_once_and_found_again(world: Any) -> None:
    """The last test: it replaces a member."""
    members, addresses, authority, tmp = world
    ann, bob, _ = members
    bob.close()
    assert wait_for(lambda: ann.members() == {0, 2}, seconds=1.0)
    files = issue(tmp / "bob-again", "bob", addresses[1], authority)
    members[1] = ZenohTransport("r", 1, NAMES, addresses, files, LARGEST)
    assert wait_for(lambda: all(len(member.members()) == 3 for member in members))
    members[1].offer("1/back", b"row", push=True)
    assert got(ann, "1/back") and got(members[2], "1/back")
