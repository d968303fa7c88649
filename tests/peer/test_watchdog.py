"""A pair that the network has given up finds each other again."""

import time
from pathlib import Path

import pytest

pytest.importorskip("zenoh", reason="pip install scool[peer]")
pytest.importorskip("cryptography", reason="pip install scool[peer]")

from peer.test_zenoh import LARGEST, free_addresses, issue, wait_for
from scool.peer import identity
from scool.peer.watchdog import LEASE, PATIENCE, Watchdog
from scool.peer.zenoh import ZenohTransport


def looked(watch: Watchdog, dark: set[int], now: float) -> bool:
    """After what was begun in the background is done."""
    found = watch.is_stuck(dark, now)
    watch._thread.join(5) if watch._thread.ident else None
    return found


def test_who_is_dark_though_it_can_be_reached_is_a_reason_to_open_the_network_again() -> None:
    watch = Watchdog(lambda peer: "" if peer == 1 else "nothing listens there")
    assert not looked(watch, {0, 1}, 100.0)
    assert not looked(watch, {0, 1}, 100.0 + PATIENCE)  # dials both
    assert not looked(watch, {0, 1}, 100.5 + PATIENCE)
    assert looked(watch, {0, 1}, 100.5 + PATIENCE + LEASE)
    assert not looked(watch, {0, 1}, 100.6 + PATIENCE + LEASE)  # it has just been opened


def test_who_cannot_be_reached_or_is_back_is_none() -> None:
    away = Watchdog(lambda peer: "it does not answer")
    back = Watchdog(lambda peer: "")
    for t in range(60):
        assert not looked(away, {0}, float(t))
    assert not looked(back, {0}, 0.0)
    assert not looked(back, {0}, PATIENCE)  # dials it
    assert not looked(back, {0}, PATIENCE + 0.5)  # it can be reached
    assert not looked(back, set(), PATIENCE + 1)  # and is back
    assert not looked(back, {0}, PATIENCE + LEASE + 1)  # dark again: from the beginning


def test_a_pair_without_a_link_finds_each_other_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bob dials where nobody listens any more, as after a network that came back elsewhere."""
    monkeypatch.setattr("scool.peer.watchdog.LEASE", 0.2)
    monkeypatch.setattr("scool.peer.watchdog.PATIENCE", 0.4)
    authority, addresses = identity.new_authority("test"), free_addresses(3)
    names, dead = ("ann", "bob"), addresses.pop()
    files = [
        issue(tmp_path / name, name, address, authority)
        for name, address in zip(names, addresses, strict=True)
    ]
    ann = ZenohTransport("w", 0, names, addresses, files[0], LARGEST)
    bob = ZenohTransport("w", 1, names, addresses, files[1], LARGEST, dial=[dead])
    try:
        bob.offer("model/7", b"numbers")

        def meet() -> bool:
            bob.wait(bob.now() + 0.05)
            return ann.members() == bob.members() == {0, 1}

        assert not wait_for(meet, 1.5)
        bob._dial[0] = addresses[0]  # from now on it could be reached
        assert wait_for(meet, 15)
        [answer] = ann.fetch([(1, "model/7")], time.monotonic() + 5)
        assert answer.data == b"numbers"
    finally:
        ann.close()
        bob.close()
