"""Which authorities the certificates of a run are of: that of the founder, and one more for each
amendment that let somebody in. Every one of them signs once; its key is thrown away."""

from collections.abc import Iterable

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from scool.errors import ConfigError
from scool.peer.identity import check_time, common_name, load


def check_leaf(leaf: bytes, name: str, authorities: bytes, is_new: bool = True) -> None:
    """Refuse a certificate that is not of this name and of one of the authorities (PEM, one after
    another), or one for a newcomer that is not valid now.

    Raises:
        ConfigError: says which of these.
    """
    found = load(leaf)
    if common_name(found.subject) != name:
        raise ConfigError(f"the certificate of {name} is that of {common_name(found.subject)}")
    if not any(_is_issued_by(found, one) for one in _load_all(authorities)):
        raise ConfigError(f"the certificate of {name} is of another authority")
    if is_new:  # else one that expires would keep everybody out for good
        check_time(found, f"the certificate of {name}")


def check_authorities(authorities: bytes, leaves: Iterable[bytes]) -> None:
    """Refuse an authority that signed no pinned certificate: it could let in anybody.

    Raises:
        ConfigError: there is one.
    """
    pinned = [load(leaf) for leaf in leaves]
    for one in _load_all(authorities):
        if not any(_is_issued_by(leaf, one) for leaf in pinned):
            raise ConfigError(
                "the file has an authority that signed for no member: somebody put it there, who "
                "could let in anybody. Ask the one who made the file for it again"
            )


def _is_issued_by(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _load_all(certificates: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(certificates)
    except ValueError as error:
        raise ConfigError(f"a certificate cannot be read ({error}): bring back a copy") from error
