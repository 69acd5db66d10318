"""Queries and documents as prompts."""

from __future__ import annotations

import pytest

from baton.errors import InvalidRequest
from baton.protocol import MediaItem
from baton_gateway.generation.pair_prompt import ContentParts, pair_prompt, single_prompt
from baton_gateway.generation.request import PairPrompt, TextPrompt

SAID = {"type": "text", "text": "a"}


def seen(url: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_media_are_in_the_order_in_which_the_model_reads_them() -> None:
    query = ContentParts((seen("u"),), "query.content")
    document = ContentParts((SAID, seen("v")), "documents[3].content")
    first = MediaItem("image", "u", "query.content[0].image_url")
    second = MediaItem("image", "v", "documents[3].content[1].image_url")
    shown = ([{"type": "image"}], [SAID, {"type": "image"}])
    assert pair_prompt(query, document, document_first=False) == PairPrompt(*shown, (first, second))
    assert pair_prompt(query, document, document_first=True) == PairPrompt(*shown, (second, first))
    assert pair_prompt("a", "b", document_first=True) == PairPrompt("a", "b")


def test_a_content_that_is_embedded_alone_is_a_text_or_an_image() -> None:
    assert single_prompt("a") == TextPrompt("a")
    assert single_prompt(ContentParts((SAID, SAID), "p")) == TextPrompt("a\na")
    image = MediaItem("image", "u", "p[0].image_url")
    assert single_prompt(ContentParts((seen("u"),), "p")) == image
    with pytest.raises(InvalidRequest, match="a text or one image, and this content has 2 parts"):
        single_prompt(ContentParts((SAID, seen("u")), "p"))
