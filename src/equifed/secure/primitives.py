"""The cryptographic primitives of secure aggregation, from the package `cryptography`: X25519, HKDF with SHA-256,
AES-256 in counter mode to generate masks, AES-256-GCM for shares."""

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
"""Bytes of a nonce."""
Part = str | bytes | int | Sequence[str] | Sequence[bytes]


def pack(*parts: Part) -> bytes:
    """Concatenate the parts, each after its length: different lists of parts give different bytes."""
    content = b""
    for part in parts:
        if isinstance(part, str):
            part = part.encode("utf-8", "surrogatepass")
        elif isinstance(part, int):
            part = part.to_bytes(8, "big")
        elif not isinstance(part, bytes):
            part = pack(*part)
        content += len(part).to_bytes(8, "big") + part
    return content


def derive(secret: bytes, purpose: str, *context: Part) -> bytes:
    """Derive a key for one purpose, which discloses nothing about the secret or keys for other purposes."""
    return HKDF(SHA256(), KEY, salt=None, info=pack("equifed", purpose, *context)).derive(secret)


def is_usable_key(public: bytes) -> bool:
    """Return True for a public key that gives a secret known only to the two silos."""
    try:
        agree(X25519PrivateKey.generate(), public)
    except ValueError:
        return False
    return True


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """Return the secret that two silos share; raise a ValueError for a key of low order, which would disclose it."""
    return private.exchange(X25519PublicKey.from_public_bytes(public))


CHUNK = 1 << 17
"""Bytes of a mask generated at once: they stay in the processor's cache."""
_ZEROS = memoryview(bytes(CHUNK))


def add_mask(numbers: np.ndarray, seed: bytes, sign: int) -> None:
    """Add (sign 1) or subtract (-1) the mask of a seed, modulo 2^64, in place. numbers: uint64 [m].

    The mask is the key stream of AES-256 in counter mode, read as little-endian integers. The counter starts at 0 for
    every seed: a seed is used for one mask only, so a key stream is never used twice.
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
    """Encrypt and authenticate the content and `about`. The nonce is random: a key is used for one message, but a silo
    with a restored older state folder might use it again."""
    nonce = os.urandom(NONCE)
    return nonce + AESGCM(key).encrypt(nonce, content, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes | None:
    """Return the sealed content; None if key or `about` differ."""
    try:
        return AESGCM(key).decrypt(sealed[:NONCE], sealed[NONCE:], about)
    except (InvalidTag, ValueError):
        return None
