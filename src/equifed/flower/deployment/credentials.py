"""Keys and certificates: an authority and the server's certificate for TLS, and a key pair to authenticate each silo.

The package `cryptography` comes with Flower, so this module is imported only after checking that Flower is installed.
"""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from equifed.errors import ConfigError
from equifed.flower.deployment.folder import LOOPBACK

VALIDITY = timedelta(days=5 * 365)
AUTHORITY = "equifed federation"


def write_certificates(folder: Path, address: str) -> datetime:
    """Write ca.crt, ca.key, server.crt and server.key for a server at `address` and localhost; return their expiry."""
    end = datetime.now(UTC) + VALIDITY
    ca, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    names = [_alternative(name) for name in dict.fromkeys((address, *LOOPBACK))]
    of_server = (
        _certificate(address[:64], server, end, authority=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.public_key()), critical=False)
    )
    folder.mkdir(mode=0o700)
    for stem, key, unsigned in (
        ("ca", ca, _certificate(AUTHORITY, ca, end, authority=True)),
        ("server", server, of_server),
    ):
        (folder / f"{stem}.crt").write_bytes(unsigned.sign(ca, hashes.SHA384()).public_bytes(Encoding.PEM))
        _write_private(folder / f"{stem}.key", key, PrivateFormat.PKCS8)
    return end


def _certificate(
    subject: str, key: ec.EllipticCurvePrivateKey, end: datetime, authority: bool
) -> x509.CertificateBuilder:
    issued, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (subject, AUTHORITY))
    # of the nine uses of a key, in X.509's order: to sign with; four others; to sign certificates and their revocations
    uses = (not authority, False, False, False, False, authority, authority, False, False)
    return (
        x509.CertificateBuilder(issuer, issued, key.public_key(), x509.random_serial_number())
        .not_valid_before(end - VALIDITY - timedelta(hours=1))  # another machine's clock may be behind
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(authority, 0 if authority else None), critical=True)
        .add_extension(x509.KeyUsage(*uses), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _alternative(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def write_key_pair(folder: Path, name: str) -> None:
    """Write NAME and NAME.pub: an ECDSA key on P-384 in OpenSSH's form, as Flower's node authentication requires."""
    key = ec.generate_private_key(ec.SECP384R1())
    folder.mkdir(mode=0o700, exist_ok=True)
    _write_private(folder / name, key, PrivateFormat.OpenSSH)
    (folder / f"{name}.pub").write_bytes(public_of(folder / name) + f" {name}\n".encode())


def public_of(private: Path) -> bytes:
    """Return the public key of a silo's private key: its type and value, as in NAME.pub."""
    try:
        key = load_ssh_private_key(private.read_bytes(), None)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{private} is not a private key in OpenSSH's form without a password ({error}).") from error
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> None:
    """Create a file that only its owner can ever read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, form, NoEncryption()))
