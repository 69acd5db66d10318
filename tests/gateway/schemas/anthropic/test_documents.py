"""Documents as text."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton_gateway.schemas.anthropic.documents import document_text

TEXT = {"type": "text", "media_type": "text/plain", "data": "said"}


def read(**fields: Any) -> str:
    text: str = document_text({"type": "document", "source": TEXT} | fields, "p")["text"]
    return text


def test_a_text_stands_behind_its_title() -> None:
    assert read() == read(citations={"enabled": False}, title=None) == "said"
    assert read(title="t", context="c") == "t\nc\nsaid"
    chunks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert read(source={"type": "content", "content": chunks}) == "a\nb"
    assert read(source={"type": "content", "content": "a"}) == "a"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"source": None}, "p.source"),
        ({"source": {"type": "text"}}, "p.source.data"),
        ({"source": {"type": "base64", "media_type": "application/pdf"}}, "p.source.type"),
        ({"source": {"type": "content", "content": 5}}, "p.source.content"),
        ({"source": {"type": "content", "content": [{"type": "image"}]}}, "p.source.content[0]"),
        ({"citations": {"enabled": True}}, "p.citations"),
        ({"title": 5}, "p.title"),
    ],
)
def test_others_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**fields)
    assert (caught.value.param or "").startswith(param)
