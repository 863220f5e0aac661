"""That the package's primitives are used as their standards mean them: RFC 7748, RFC 5869, FIPS 197, SP 800-38A."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from equifed.secure.primitives import CHUNK, add_mask, agree, derive, pack, seal, unseal


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869, by its words."""
    key = hmac.digest(salt or bytes(32), secret, hashlib.sha256)
    block, stream = b"", b""
    for counter in range(1, 256):
        block = hmac.digest(key, block + info + bytes([counter]), hashlib.sha256)
        stream += block
    return stream[:length]


def key_stream(key: bytes, length: int) -> bytes:
    """AES-256 of 0, 1, 2, ... as big-endian blocks (SP 800-38A, 6.5)."""
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    return b"".join(cipher.update(counter.to_bytes(16, "big")) for counter in range(-(-length // 16)))[:length]


def test_agreement_as_in_rfc_7748() -> None:
    """Section 6.1."""
    private = [
        "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
        "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
    ]
    public = [
        "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
        "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
    ]
    keys = [X25519PrivateKey.from_private_bytes(bytes.fromhex(key)) for key in private]
    assert [key.public_key().public_bytes_raw().hex() for key in keys] == public
    agreed = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert agree(keys[0], bytes.fromhex(public[1])).hex() == agree(keys[1], bytes.fromhex(public[0])).hex() == agreed


@pytest.mark.parametrize("low", [bytes(32), (1).to_bytes(32, "little"), (2**255 - 20).to_bytes(32, "little")])
def test_a_key_of_low_order_is_refused(low: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        agree(X25519PrivateKey.generate(), low)


def test_derivation_as_in_rfc_5869() -> None:
    """The function here by test cases 1 and 3 of appendix A; ours by the function here."""
    secret = bytes([11] * 22)
    assert hkdf(secret, bytes(range(13)), bytes(range(0xF0, 0xFA)), 42).hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )
    assert hkdf(secret, b"", b"", 42).hex() == (
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    )
    info = b"".join(len(part).to_bytes(8, "big") + part for part in (b"equifed", b"mask", b"a transcript"))
    assert derive(secret, "mask", b"a transcript") == hkdf(secret, b"", info, 32)


def test_masks_are_the_key_stream_of_aes() -> None:
    plain, key = bytes(range(0, 256, 17)), bytes(range(32))
    aes = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    assert aes.update(plain).hex() == "8ea2b7ca516745bfeafc49904b496089"  # FIPS 197, C.3
    assert key_stream(bytes(32), 16).hex() == "dc95c078a2408989ad48a21492842087"


@pytest.mark.parametrize("length", [0, 1, 2, 3, CHUNK // 8 - 1, CHUNK // 8, CHUNK // 8 + 1, 2 * CHUNK // 8 + 5])
def test_masks_of_any_length(length: int) -> None:
    key = bytes(range(32))
    stream = key_stream(key, 8 * length)
    expected = [int.from_bytes(stream[place : place + 8], "little") for place in range(0, 8 * length, 8)]
    numbers = np.arange(length, dtype=np.uint64)
    add_mask(numbers, key, 1)
    assert numbers.tolist() == [(index + value) % 2**64 for index, value in enumerate(expected)]
    add_mask(numbers, key, -1)
    assert numbers.tolist() == list(range(length))
    add_mask(numbers, key, -1)
    assert numbers.tolist() == [(index - value) % 2**64 for index, value in enumerate(expected)]


parts = st.lists(st.one_of(st.text(), st.binary(), st.integers(0, 2**63), st.lists(st.text())), max_size=4)


@given(parts, parts)
def test_different_parts_are_packed_differently(one: list, other: list) -> None:
    """But for what parts are: an exchange has its parts in a fixed order of types."""
    if [type(part) for part in one] == [type(part) for part in other]:
        assert (pack(*one) == pack(*other)) == (one == other)
    assert pack("ab", "c") != pack("a", "bc") != pack(["a", "bc"])


def test_what_was_sealed_opens_with_the_same_key_and_words_only() -> None:
    sealed = seal(bytes(32), b"a share of 17 by.", b"from a to b")
    assert len(sealed) == 45
    assert unseal(bytes(32), sealed, b"from a to b") == b"a share of 17 by."
    assert unseal(bytes(32), sealed, b"from b to a") is None
    assert unseal(bytes([1] * 32), sealed, b"from a to b") is None
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        assert unseal(bytes(32), bytes(changed), b"from a to b") is None
    assert all(unseal(bytes(32), sealed[:length], b"from a to b") is None for length in range(45))
    assert seal(bytes(32), b"the same", b"") != seal(bytes(32), b"the same", b"")
