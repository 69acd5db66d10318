"""Signatures of thinking."""

from __future__ import annotations

from baton_gateway.schemas.anthropic.signature import Signature, is_signed, sign


def test_parts_are_signed_as_the_whole() -> None:
    signature = Signature()
    for part in ("hm", "", "m \ud800"):
        signature.add(part)
    assert signature.text == sign("hmm \ud800")


def test_only_the_same_text_is_signed() -> None:
    assert is_signed("hmm", sign("hmm"))
    assert not is_signed("hmm ", sign("hmm"))
    assert not is_signed("hmm", "\ud800") and not is_signed("", "")
