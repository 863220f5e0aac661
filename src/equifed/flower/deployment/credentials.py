"""Keys and certificates: an authority and the server's certificate for TLS, a key pair per silo to know it by."""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from equifed.flower.deployment.installed import require_flower

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

YEARS = 5
"""How long the certificates are valid."""
LOOPBACK = ("127.0.0.1", "localhost")


def write_certificates(folder: Path, address: str) -> datetime:
    """ca.crt, ca.key, server.crt and server.key for a server at `address` and on its own machine; when they end."""
    require_flower()  # which brings the package `cryptography`
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.now(UTC)
    end = now + timedelta(days=365 * YEARS)

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def certificate(subject: str, key: EllipticCurvePrivateKey, authority: bool) -> x509.CertificateBuilder:
        usage = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
        ) | {"encipher_only": False, "decipher_only": False}
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name(AUTHORITY))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))  # another machine's clock may be late
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(authority, 0 if authority else None), critical=True)
            .add_extension(
                x509.KeyUsage(digital_signature=not authority, key_cert_sign=authority, crl_sign=authority, **usage),
                critical=True,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )

    ca, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    names = [_alternative(name) for name in dict.fromkeys((address, *LOOPBACK))]
    of_ca = certificate(AUTHORITY, ca, authority=True)
    of_server = (
        certificate(address[:64], server, authority=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.public_key()), critical=False)
    )
    folder.mkdir(mode=0o700)
    for stem, key, built in (("ca", ca, of_ca), ("server", server, of_server)):
        signed = built.sign(ca, hashes.SHA384())
        (folder / f"{stem}.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_private(folder / f"{stem}.key", pem)
    return end


AUTHORITY = "equifed federation"


def _alternative(address: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def write_key_pair(folder: Path, name: str) -> None:
    """NAME and NAME.pub: an ECDSA key on P-384 in OpenSSH's form, as Flower's node authentication wants it."""
    require_flower()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    folder.mkdir(mode=0o700, exist_ok=True)
    write_private(folder / name, pem)
    (folder / f"{name}.pub").write_bytes(public + f" {name}\n".encode())


def write_private(path: Path, content: bytes) -> None:
    """A new file that nobody else can read, from its first moment on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
