"""Who vouches for keys: signatures by nodes' keys, and rosters of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from equifed.errors import ConfigError
from equifed.flower.deployment.credentials import write_key_pair
from equifed.secure import Refused, Roster, sign, verify

RUN, APP, PUBLIC = "a run", "0" * 32, bytes(range(32))
ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    for name in ("north", "south"):
        write_key_pair(tmp_path / "keys", name)
    return tmp_path / "keys"


def public_line(keys: Path, name: str) -> str:
    return (keys / f"{name}.pub").read_text()


def roster(keys: Path, *names: str, **lines: str) -> Path:
    path = keys / "roster.json"
    path.write_text(json.dumps({name: public_line(keys, name) for name in names} | lines))
    return path


def test_a_signature_is_of_this_run_app_and_key(keys: Path) -> None:
    signature, node = sign(keys / "north", RUN, APP, PUBLIC), public_line(keys, "north").encode()
    verify(node, RUN, APP, PUBLIC, signature)
    for wrong in (
        (public_line(keys, "south").encode(), RUN, APP, PUBLIC, signature),
        (node, "another run", APP, PUBLIC, signature),
        (node, RUN, "1" * 32, PUBLIC, signature),
        (node, RUN, APP, PUBLIC[::-1], signature),
        (node, RUN + APP, "", PUBLIC, signature),
        (node, RUN, APP, PUBLIC, signature[:-1]),
        (node, RUN, APP, PUBLIC, b""),
        (b"no key", RUN, APP, PUBLIC, signature),
        (ED25519.encode(), RUN, APP, PUBLIC, signature),
    ):
        with pytest.raises(Refused, match="not signed by its silo's node"):
            verify(*wrong)


def test_a_signature_as_anybody_can_check_it(keys: Path) -> None:
    """ECDSA with SHA-384 of the parts, each after its length in 8 bytes."""
    node = load_ssh_public_key(public_line(keys, "north").encode())
    assert isinstance(node, ec.EllipticCurvePublicKey)
    parts = (b"equifed run key", RUN.encode(), APP.encode(), PUBLIC)
    signed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    signature = sign(keys / "north", RUN, APP, PUBLIC)
    node.verify(signature, signed, ec.ECDSA(SHA384()))
    with pytest.raises(InvalidSignature):
        node.verify(signature, signed + b"x", ec.ECDSA(SHA384()))


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed here")
def test_other_kinds_of_private_keys_are_refused(tmp_path: Path) -> None:
    for kind, more, words in (
        ("ed25519", "", "not a key on an elliptic curve"),
        ("ecdsa", "a password", "cannot be read"),
    ):
        path = tmp_path / kind
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", more, "-f", str(path)], check=True)
        with pytest.raises(ConfigError, match=words):
            sign(path, RUN, APP, PUBLIC)


def test_private_keys_that_cannot_be_read(keys: Path) -> None:
    (keys / "text").write_text("no key")
    for name in ("missing", "text", "north.pub", "."):
        with pytest.raises(ConfigError, match="private key cannot be read"):
            sign(keys / name, RUN, APP, PUBLIC)


def test_a_roster_says_whose_node_must_have_signed(keys: Path) -> None:
    known = Roster.read(roster(keys, "north", "south"))
    assert known.keys.keys() == {"north", "south"}
    signature = sign(keys / "north", RUN, APP, PUBLIC)
    known.check("north", RUN, APP, PUBLIC, signature)
    with pytest.raises(Refused, match="'south' is not signed by the node that the roster has for it"):
        known.check("south", RUN, APP, PUBLIC, signature)
    with pytest.raises(Refused, match="'east' is not in this silo's roster"):
        known.check("east", RUN, APP, PUBLIC, signature)


def test_rosters_that_cannot_be_read(keys: Path) -> None:
    path = keys / "roster.json"
    for content in ("", "no JSON", "[]", '"north"', '{"north": 1}', '{"north": null}', "[" * 100_000):
        path.write_text(content)
        with pytest.raises(ConfigError, match="roster"):
            Roster.read(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        Roster.read(keys / "missing.json")
    with pytest.raises(ConfigError, match="key of 'west' is not a public key on an elliptic curve"):
        Roster.read(roster(keys, "north", west="ssh-rsa AAAA"))
    with pytest.raises(ConfigError, match="key of 'west' is not a public key on an elliptic curve"):
        Roster.read(roster(keys, "north", west=ED25519))
    with pytest.raises(ConfigError, match="one key for 'north' and 'west'"):
        Roster.read(roster(keys, "north", "south", west=public_line(keys, "north").split(" north")[0] + " another"))
