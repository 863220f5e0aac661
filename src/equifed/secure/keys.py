"""Verification of a silo's key in a run: its node's key, which Flower knows, signs it; a roster, exchanged among the
silos and not by the server, lists the nodes' keys."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key, ssh_key_fingerprint

from equifed.errors import ConfigError
from equifed.files import read_regular, to_json, write_atomic
from equifed.secure.exchange import Refused
from equifed.secure.primitives import pack
from equifed.words import quoted

MOST = 1 << 20
"""Largest size of a roster or a key file, in bytes."""


def sign(private_key_file: Path, run: str, app: str, public: bytes) -> bytes:
    """Return the node's signature (ECDSA, SHA-384) of its key in a run; app: the digest of the app that the silo
    runs."""
    try:
        key = load_ssh_private_key(read_regular(private_key_file, MOST), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"The node's private key cannot be read from {private_key_file}: {error}.") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        text = f"{private_key_file} is not a key on an elliptic curve. Create one with `equifed flower init`."
        raise ConfigError(text)
    return key.sign(_signed(run, app, public), ec.ECDSA(SHA384()))


def verify(node_public_key: bytes, run: str, app: str, public: bytes, signature: bytes) -> None:
    """Raise Refused for a key that this node has not signed. node_public_key: a line as in OpenSSH's NAME.pub."""
    try:
        _node_key(node_public_key).verify(signature, _signed(run, app, public), ec.ECDSA(SHA384()))
    except (InvalidSignature, ValueError, UnsupportedAlgorithm) as error:
        raise Refused("cannot be made: a key of the run is not signed by its silo's node") from error


def _node_key(line: bytes) -> ec.EllipticCurvePublicKey:
    key = load_ssh_public_key(line)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("not a key on an elliptic curve")
    return key


def _signed(run: str, app: str, public: bytes) -> bytes:
    return pack("equifed run key", run, app, public)


@dataclass(frozen=True)
class Roster:
    """The public keys of the silos' nodes, as exchanged among the silos."""

    keys: Mapping[str, bytes]
    """Key of each silo, a line as in OpenSSH's NAME.pub."""

    @classmethod
    def read(cls, path: Path) -> Roster:
        """Read a JSON file: {"silo": "ecdsa-sha2-nistp384 AAAA...", ...}."""
        try:
            listed = json.loads(read_regular(path, MOST))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"The roster cannot be read: {error}.", file=path) from error
        if not isinstance(listed, dict) or not all(isinstance(line, str) for line in listed.values()):
            raise ConfigError('A roster is a JSON object, {"silo": "its node\'s public key", ...}.', file=path)
        return cls._of(listed, path)

    @classmethod
    def collect(cls, files: Iterable[Path]) -> Roster:
        """Make the roster from the files with the silos' public keys, each named NAME.pub."""
        listed: dict[str, str] = {}
        for file in files:
            if file.suffix != ".pub" or file.stem in listed:
                raise ConfigError("The public key of a silo is a file NAME.pub, one for each silo.", file=file)
            try:
                listed[file.stem] = read_regular(file, MOST).decode().strip()
            except (OSError, ValueError) as error:
                raise ConfigError(f"The public key cannot be read: {error}.", file=file) from error
        return cls._of(listed, None)

    @classmethod
    def _of(cls, listed: Mapping[str, str], path: Path | None) -> Roster:
        owners: dict[object, str] = {}
        for name, line in listed.items():
            try:
                number = _node_key(line.encode()).public_numbers()
            except (ValueError, UnsupportedAlgorithm) as error:
                text = f"The roster's key of {quoted(name)} is not a public key on an elliptic curve in OpenSSH format."
                raise ConfigError(text, file=path) from error
            if number in owners:
                text = f"The roster has one key for {quoted(owners[number])} and {quoted(name)}."
                raise ConfigError(text, file=path)
            owners[number] = name
        return cls({name: line.encode() for name, line in listed.items()})

    def write(self, path: Path) -> None:
        """Write the roster as a JSON file."""
        write_atomic(path, to_json({name: line.decode() for name, line in self.keys.items()}))

    def fingerprint(self, name: str) -> str:
        """Return the fingerprint of a silo's key, as printed by `ssh-keygen -lf NAME.pub`."""
        digest = ssh_key_fingerprint(_node_key(self.keys[name]), SHA256())
        return "SHA256:" + b64encode(digest).decode().rstrip("=")

    def check(self, name: str, run: str, app: str, public: bytes, signature: bytes) -> None:
        """Raise Refused for a silo's key in a run that its node has not signed."""
        if name not in self.keys:
            raise Refused(f"cannot be made: {quoted(name)} is not in this silo's roster")
        try:
            verify(self.keys[name], run, app, public, signature)
        except Refused as error:
            text = f"cannot be made: the key of {quoted(name)} is not signed by the node that the roster has for it"
            raise Refused(text) from error
