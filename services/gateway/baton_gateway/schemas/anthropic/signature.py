"""Signatures of thinking: clients send them back with the thinking, and they show whether it was
changed.

A digest of the text, which every gateway can check without a shared secret. It detects changed or
truncated thinking; it does not authenticate its author.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

_DOMAIN = b"baton thinking 1\0"


class Signature:
    """Incremental signature of a text."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256(_DOMAIN)

    def add(self, text: str) -> None:
        """Append a part of the text."""
        self._digest.update(text.encode("utf-8", "surrogatepass"))

    @property
    def text(self) -> str:
        """The signature of the text so far, in base64."""
        return base64.b64encode(self._digest.digest()).decode()


def sign(thinking: str) -> str:
    """Return the signature of a complete text."""
    signature = Signature()
    signature.add(thinking)
    return signature.text


def is_signed(thinking: str, signature: str) -> bool:
    """Return whether this is the signature of the text."""
    return hmac.compare_digest(sign(thinking).encode(), signature.encode("utf-8", "replace"))
