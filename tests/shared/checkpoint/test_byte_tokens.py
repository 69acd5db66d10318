"""How vocabularies write bytes."""

from __future__ import annotations

from baton.checkpoint.byte_tokens import ALPHABET, byte_fallback, byte_level


def test_the_byte_alphabet_is_a_bijection() -> None:
    assert sorted(ALPHABET.values()) == list(range(256))
    assert ALPHABET["Ġ"] == 0x20 and ALPHABET["Ċ"] == 0x0A and ALPHABET["a"] == ord("a")


def test_byte_level_tokens() -> None:
    assert byte_level("Ġhello") == b" hello" and byte_level("Ã©") == "é".encode()
    assert byte_level("<|a b|>") == b"<|a b|>"  # a space is not in the alphabet: plain text


def test_byte_fallback_tokens() -> None:
    assert byte_fallback("<0xE4>") == b"\xe4"
    assert byte_fallback("<0xE4") is None and byte_fallback("<0xE40>") is None
