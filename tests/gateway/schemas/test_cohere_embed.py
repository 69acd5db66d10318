"""Requests of Cohere's embed API."""

from __future__ import annotations

from baton.protocol import MediaItem
from baton_gateway.http.body import build
from baton_gateway.schemas.cohere_embed import CohereEmbedRequest


def test_a_request_has_its_inputs_and_the_prompts_of_its_task() -> None:
    body = build({"images": ["data:,"], "input_type": "search_query"}, CohereEmbedRequest)
    assert body.param == "images" and body.contents == (MediaItem("image", "data:,", "images[0]"),)
    assert body.prompt_names == ("search_query", "query")
    body = build({"texts": ["a", "b"], "embedding_types": None}, CohereEmbedRequest)
    assert (body.param, body.contents, body.prompt_names) == ("texts", ("a", "b"), ())
    assert body.embedding_types == ["float"]
