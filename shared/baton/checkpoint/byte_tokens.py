"""Byte encodings in vocabularies: the alphabet of byte-level BPE, and byte fallback tokens."""

from __future__ import annotations

import re

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """The printable character that GPT-2 vocabularies write for each byte, inverted.

    Follows `bytes_to_unicode` of https://github.com/openai/gpt-2.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [byte for byte in range(256) if byte not in printable]
    shifted = {chr(256 + index): byte for index, byte in enumerate(unprintable)}
    return {chr(byte): byte for byte in printable} | shifted


ALPHABET = _byte_alphabet()
"""Character of a byte-level token to byte."""


_BYTES = "".join(chr(ALPHABET.get(chr(code), code + 256)) for code in range(512))
"""Translation table from the alphabet to bytes; other characters map to no byte. `str.translate`
takes half the time of a dictionary."""


def byte_level(token: str) -> bytes:
    """The bytes of a byte-level token, each character one byte; of any other, its UTF-8."""
    try:
        return token.translate(_BYTES).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()


def byte_fallback(token: str) -> bytes | None:
    """The one byte of a token like "<0x0A>"; None for any other token."""
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else None
