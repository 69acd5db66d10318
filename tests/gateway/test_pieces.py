"""Pieces merge without losing text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from baton_gateway.pieces import Content, merge, plain


@given(st.lists(st.text(), max_size=5))
def test_merged_content_is_one_piece(texts: list[str]) -> None:
    merged = plain("")
    for text in texts:
        merged = merge(merged, plain(text))
    assert merged == plain("".join(texts))


def test_plain_text_is_content() -> None:
    assert plain("") == () and plain("a") == (Content("a"),)
