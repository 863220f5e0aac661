"""The cryptography that secure sums are made of, all from the package `cryptography`: X25519, HKDF with SHA-256,
AES-256 in counter mode as the generator of masks, AES-256-GCM for shares."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY = 32
"""Bytes of every key and seed."""
NONCE = 12
Part = str | bytes | int | Sequence[str] | Sequence[bytes]


def packed(*parts: Part) -> bytes:
    """The parts in one, each with its length before it: no two lists of parts give the same bytes."""
    content = b""
    for part in parts:
        if isinstance(part, str):
            part = part.encode("utf-8", "surrogatepass")
        elif isinstance(part, int):
            part = part.to_bytes(8, "big")
        elif not isinstance(part, bytes):
            part = packed(*part)
        content += len(part).to_bytes(8, "big") + part
    return content


def derive(secret: bytes, purpose: str, *context: Part) -> bytes:
    """A key for one purpose: what is known of it says nothing of the secret, nor of the key for another purpose."""
    return HKDF(SHA256(), KEY, salt=None, info=packed("equifed", purpose, *context)).derive(secret)


def usable(public: bytes) -> bool:
    """Whether it is a public key with which only two would know what they share."""
    try:
        agree(X25519PrivateKey.generate(), public)
    except ValueError:
        return False
    return True


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """The secret that two silos share; a ValueError for a key with which anybody could know it (of low order)."""
    return private.exchange(X25519PublicKey.from_public_bytes(public))


CHUNK = 1 << 17
"""Bytes of a mask that are made at once: they stay in the processor's cache."""
_ZEROS = memoryview(bytes(CHUNK))


def add_mask(numbers: np.ndarray, seed: bytes, sign: int) -> None:
    """Add (sign 1) or take away (-1) the mask that the seed stands for, modulo 2^64, in place. numbers: uint64 [m].

    The mask is the key stream of AES-256 in counter mode, read as little-endian integers. The counter starts at 0 for
    every seed: a seed serves one mask only, so no part of a key stream is ever used twice.
    """
    stream = Cipher(AES256(seed), CTR(bytes(16))).encryptor()
    buffer = bytearray(CHUNK)
    mask = np.frombuffer(buffer, "<u8")
    for start in range(0, len(numbers), CHUNK // 8):
        part = numbers[start : start + CHUNK // 8]
        stream.update_into(_ZEROS[: 8 * len(part)], buffer)
        if sign > 0:
            part += mask[: len(part)]
        else:
            part -= mask[: len(part)]


def seal(key: bytes, content: bytes, about: bytes) -> bytes:
    """Encrypted, so that only who has the key can read it and knows that it is genuine, and about this. The nonce is
    random: a key serves one message, but a silo whose folder was put back might use it again."""
    nonce = os.urandom(NONCE)
    return nonce + AESGCM(key).encrypt(nonce, content, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes | None:
    """What was sealed; None if it was not with this key and about this."""
    try:
        return AESGCM(key).decrypt(sealed[:NONCE], sealed[NONCE:], about)
    except (InvalidTag, ValueError):
        return None
