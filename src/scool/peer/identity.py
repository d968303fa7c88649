"""Who is who: an owner's key, the certificate authority of one run, the leaves it signs, and
signatures under records. Private keys are made at home and stay there."""

import datetime
import hashlib
import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from scool.errors import ConfigError, require
from scool.peer.addresses import host_of

DAYS = 30  # that a leaf is valid
SLACK = datetime.timedelta(hours=1)  # by which clocks may differ
_SHA = ec.ECDSA(hashes.SHA256())
_SCHEME = "scool://"  # of the address in a request


def check_name(name: str) -> str:
    """The name of a member: part of keys and of file names."""
    is_plain = re.fullmatch(r"[a-z0-9][a-z0-9-]{0,38}", name) is not None
    require(
        is_plain, "name", name, "give up to 39 of a-z, 0-9 and -, starting with one of a-z, 0-9"
    )
    return name


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Only its owner may read the file."""
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def request(
    name: str, address: str, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateSigningRequest:
    """What an owner sends to the founder: its name, address and public key, signed with the key."""
    where = x509.UniformResourceIdentifier(f"{_SCHEME}{address}")
    builder = x509.CertificateSigningRequestBuilder().subject_name(_named(name))
    names = x509.SubjectAlternativeName([_host_name(host_of(address)), where])
    return builder.add_extension(names, critical=False).sign(key, _hash())


class Wanted(NamedTuple):
    """A certificate request, read and checked."""

    name: str
    address: str
    signing: x509.CertificateSigningRequest

    @property
    def key(self) -> str:
        """The fingerprint of the public key, which owners may compare by telephone."""
        return key_fingerprint(self.signing.public_key())


def read_request(data: bytes, where: object = "the request") -> Wanted:
    """A request as it came by mail.

    Raises:
        ConfigError: it is none of `scool peer init`, or was changed on the way.
    """
    try:
        found = x509.load_pem_x509_csr(data)
        is_whole = found.is_signature_valid
        name = common_name(found.subject)
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        [address] = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (ValueError, IndexError, x509.ExtensionNotFound) as error:
        raise ConfigError(
            f"{where} is not a certificate request of `scool peer init` ({error}): ask its owner "
            "for the file NAME.request"
        ) from error
    if not is_whole:
        raise ConfigError(f"{where} was changed on its way: ask its owner to send it again")
    address = address.removeprefix(_SCHEME)
    host_of(address)
    return Wanted(check_name(name), address, found)


def new_authority(run: str, days: float = DAYS) -> tuple[ec.EllipticCurvePrivateKey, bytes]:
    """The key and certificate (PEM) of one run's authority."""
    key = new_key()
    name = _named(f"scool {run}")
    builder = _certificate(name, name, key.public_key(), days).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    return key, pem(builder.sign(key, _hash()))


def sign_leaf(
    wanted: Wanted,
    authority_key: ec.EllipticCurvePrivateKey,
    authority: bytes,
    days: float = DAYS,
) -> bytes:
    """The certificate (PEM) of a member at its address."""
    issuer = x509.load_pem_x509_certificate(authority).subject
    names = x509.SubjectAlternativeName([_host_name(host_of(wanted.address))])
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        _certificate(wanted.signing.subject, issuer, wanted.signing.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(names, critical=False)
    )
    return pem(builder.sign(authority_key, _hash()))


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate (PEM), as it is pinned in the agreement."""
    der = load(certificate).public_bytes(serialization.Encoding.DER)
    return f"sha256:{hashlib.sha256(der).hexdigest()}"


def key_fingerprint(public: object) -> str:
    """SHA-256 of a public key."""
    assert isinstance(public, ec.EllipticCurvePublicKey)
    der = public.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return f"sha256:{hashlib.sha256(der).hexdigest()}"


def read_key(data: bytes) -> ec.EllipticCurvePrivateKey:
    """Raises:
    ConfigError: it is not such a key.
    """
    try:
        found = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError("key.pem cannot be read: bring back a copy") from error
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ConfigError("key.pem is of another kind than `scool peer init` makes")
    return found


def is_of(key: ec.EllipticCurvePrivateKey, leaf: bytes) -> bool:
    """Whether a certificate is for this key."""
    return load(leaf).public_key() == key.public_key()


def pem(made: x509.Certificate | x509.CertificateSigningRequest) -> bytes:
    return made.public_bytes(serialization.Encoding.PEM)


class Files(NamedTuple):
    """Where a member keeps what it is known by."""

    key: Path
    leaf: Path
    authority: Path

    @classmethod
    def of(cls, folder: Path) -> "Files":
        return cls(folder / "key.pem", folder / "leaf.pem", folder / "authority.pem")


@final
class Keys:
    """Signs with a member's key, and checks signatures with the pinned leaves of all members."""

    def __init__(self, key: bytes, leaves: Sequence[bytes], place: int) -> None:
        """`key` and `leaves` are PEM, in the order of the places.

        Raises:
            ConfigError: the key is not that of the leaf.
        """
        found = read_key(key)
        if not is_of(found, leaves[place]):
            raise ConfigError("key.pem is not the key of leaf.pem: bring back the one made with it")
        self._key = found
        self._public = [load(leaf).public_key() for leaf in leaves]
        self._leaf = load(leaves[place])

    def check_time(self) -> None:
        """Raises:
        ConfigError: the own certificate is not valid now.
        """
        check_time(self._leaf, "leaf.pem")

    def sign(self, header: bytes) -> bytes:
        return self._key.sign(header, _SHA)

    def is_from(self, sender: int, header: bytes, signature: bytes) -> bool:
        return 0 <= sender < len(self._public) and _holds(self._public[sender], header, signature)


def is_signed(leaf: bytes, content: bytes, signature: bytes) -> bool:
    """Whether the owner of a certificate (PEM) has signed something."""
    return _holds(load(leaf).public_key(), content, signature)


def _holds(public: object, content: bytes, signature: bytes) -> bool:
    assert isinstance(public, ec.EllipticCurvePublicKey)
    try:
        public.verify(signature, content, _SHA)
    except InvalidSignature:
        return False
    return True


def load(certificate: bytes) -> x509.Certificate:
    """Raises:
    ConfigError: it is no certificate.
    """
    try:
        return x509.load_pem_x509_certificate(certificate)
    except ValueError as error:
        raise ConfigError(f"a certificate cannot be read ({error}): bring back a copy") from error


def check_time(leaf: x509.Certificate, what: str) -> None:
    """Refuse a certificate that is not valid now."""
    now = datetime.datetime.now(datetime.UTC)
    if now > leaf.not_valid_after_utc:
        raise ConfigError(
            f"{what} expired on {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: set the clock of "
            "this machine right if it is wrong. Else a run ends here with what it has learned, and "
            "more rounds need a new agreement (`scool peer invite --days` says for how long)"
        )
    if now < leaf.not_valid_before_utc:
        raise ConfigError(
            f"{what} is valid from {leaf.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on: set the "
            "clock of this machine right"
        )


def common_name(name: x509.Name) -> str:
    return str(name.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def _hash() -> hashes.SHA256:
    return hashes.SHA256()


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: object, days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SLACK)
        .not_valid_after(now + datetime.timedelta(days=days))
    )
