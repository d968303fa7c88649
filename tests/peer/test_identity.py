"""Keys, certificates and signatures."""

import datetime
import stat
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="pip install scool[peer]")

from scool.errors import ConfigError
from scool.peer import identity
from scool.peer.identity import Keys


def leaf(key: object, days: int = 30) -> bytes:
    authority = identity.new_authority("test")
    wanted = identity.read_request(identity.pem(identity.request("ann", "localhost:1", key)))
    return identity.sign_leaf(wanted, *authority, days=days)


def test_signatures_hold_for_the_one_who_signed(tmp_path: Path) -> None:
    keys = [identity.new_key() for _ in range(2)]
    for place, key in enumerate(keys):
        identity.write_key(tmp_path / str(place), key)
    assert stat.S_IMODE((tmp_path / "0").stat().st_mode) == 0o600
    leaves = [leaf(key) for key in keys]
    ann, bob = (Keys((tmp_path / str(i)).read_bytes(), leaves, i) for i in range(2))
    signature = ann.sign(b"header")
    assert bob.is_from(0, b"header", signature)
    for sender, header, found in [(1, b"header", signature), (0, b"heade", signature)]:
        assert not bob.is_from(sender, header, found)
    assert not any(bob.is_from(sender, b"header", signature) for sender in (-1, 2))
    assert not bob.is_from(0, b"header", b"") and not bob.is_from(0, b"header", signature[:-1])


def test_a_certificate_that_is_not_valid_now_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = identity.new_key()
    identity.write_key(tmp_path / "key", key)
    found = (tmp_path / "key").read_bytes()
    with pytest.raises(ConfigError, match=r"expired on .*: set the clock of this machine"):
        Keys(found, [leaf(key, days=0)], 0).check_time()
    monkeypatch.setattr(identity, "SLACK", datetime.timedelta(days=-1))
    with pytest.raises(ConfigError, match=r"is valid from .* on: set the clock"):
        Keys(found, [leaf(key)], 0).check_time()


def test_fingerprints_tell_certificates_apart() -> None:
    key = identity.new_key()
    one, other = leaf(key), leaf(key)
    assert identity.fingerprint(one) == identity.fingerprint(one) != identity.fingerprint(other)
