"""Encrypts thinking that clients send back: `encrypted_content` of the Responses API.

Authenticated encryption (AES-256-SIV, RFC 5297): text that was changed, or encrypted for another
tenant, is refused. It is deterministic, so a repeated stream has the same bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

_DOMAIN = b"baton reasoning 1\0"
_FILE = "reasoning.key"
_SECRET_BYTES = 32


class ReasoningCipher:
    """A cipher with one secret."""

    def __init__(self, secret: bytes) -> None:
        self._cipher = AESSIV(hashlib.sha512(_DOMAIN + secret).digest())

    def encrypt(self, thinking: str, owner: str) -> str:
        """Encrypt a non-empty text as base64 that only `owner` can send back."""
        sealed = self._cipher.encrypt(thinking.encode("utf-8", "surrogatepass"), _context(owner))
        return base64.urlsafe_b64encode(sealed).decode()

    def decrypt(self, sealed: str, owner: str) -> str:
        """Decrypt a text. Raises `ValueError` if it was not encrypted for `owner`."""
        try:
            data = base64.b64decode(sealed.encode(), altchars=b"-_", validate=True)
            return self._cipher.decrypt(data, _context(owner)).decode("utf-8", "surrogatepass")
        except (InvalidTag, binascii.Error, UnicodeError) as error:
            raise ValueError("not made here for this owner") from error


@lru_cache(maxsize=16)
def cipher_of(secret: str, run_dir: Path) -> ReasoningCipher:
    """Return the cipher of a secret; if it is empty, of the secret in the run directory.

    The first gateway that needs the secret creates it. Raises `OSError`.
    """
    return ReasoningCipher(secret.encode() if secret else _shared_secret(run_dir / _FILE))


def _shared_secret(path: Path) -> bytes:
    """Return the secret in a file; created if no other gateway has done so."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        with os.fdopen(
            os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb"
        ) as file:
            file.write(secrets.token_bytes(_SECRET_BYTES))
        try:
            os.link(temporary, path)  # atomically, and only if there is none
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
    return path.read_bytes()


def _context(owner: str) -> list[bytes]:
    return [owner.encode("utf-8", "surrogatepass")]
