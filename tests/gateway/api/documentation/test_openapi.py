"""The document is true: what is served fits it, and what it invites never breaks the server."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from starlette.routing import WebSocketRoute

from baton_gateway.api import ROUTERS
from baton_gateway.api.documentation.description import description_of
from tests.fakes.gateway_app import Site, chat, completion
from tests.fakes.gateway_engine import MODEL

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BODILESS = {
    "/reset_prefix_cache",
    "/v1/responses/compact",
    "/v1/images/generations",
    "/pause",
    "/start_weight_update",
    "/resume",
    "/sleep",
    "/start_profile",
    "/stop_profile",
    "/wake_up",
}
"""POST routes that read no body, beside those that cancel something."""
ENDLESS = frozenset({"/fleet/stream"})
"""Streams that end with the gateway."""
GOOD: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", chat(stop="x", n=2, logprobs=True, top_logprobs=2, seed=None)),
    ("/v1/chat/completions", chat(stop=["x"], logit_bias={"65": 1}, prompt_logprobs=1)),
    ("/v1/completions", completion(prompt=["a", "b"], logprobs=1, return_token_ids=True)),
    ("/v1/completions", completion(prompt=[[65], [66]], echo=True, bad_words=["no"])),
    ("/v1/messages", {"model": MODEL, "max_tokens": 4, "messages": [USER]}),
    ("/v1/messages/count_tokens", {"model": MODEL, "messages": [USER]}),
    ("/v1/responses/input_tokens", {"model": MODEL, "input": "hi"}),
    ("/tokenize", {"messages": [USER], "tools": [TOOL], "return_token_strs": True}),
    ("/detokenize", {"tokens": [65, 66]}),
    ("/v1/responses", {"model": MODEL, "input": "hi", "max_output_tokens": 16}),
]


@pytest.fixture(scope="module")
def document(shared_site: Site) -> dict[str, Any]:
    found: dict[str, Any] = shared_site.get("/openapi.json").json()
    return found


def check(value: Any, schema: dict[str, Any], document: dict[str, Any]) -> None:
    Draft202012Validator({**schema, "components": document["components"]}).validate(value)


def test_every_route_says_what_it_reads_and_answers() -> None:
    for router in ROUTERS:
        for route in router.routes:
            if isinstance(route, WebSocketRoute):
                continue  # OpenAPI has no word for it.
            described = description_of(route.endpoint)  # type: ignore[attr-defined]
            assert any((described.answer, described.events, described.media_type)), route
            bodiless = route.path in BODILESS or route.path.endswith("/cancel")  # type: ignore[attr-defined]
            posts = "POST" in route.methods and not bodiless  # type: ignore[attr-defined]
            assert posts == (described.body is not None or described.form is not None), route


def test_what_is_served_fits_the_document(shared_site: Site, document: dict[str, Any]) -> None:
    for path, body in GOOD:
        operation = document["paths"][path]["post"]
        check(body, operation["requestBody"]["content"]["application/json"]["schema"], document)
        response = shared_site.post(path, body)
        assert response.status_code == 200, response.text
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        check(response.json(), schema, document)
        refused = shared_site.post(path, {})
        schema = operation["responses"]["default"]["content"]["application/json"]["schema"]
        check(refused.json(), schema, document)


def test_what_is_served_without_a_body_fits_too(
    shared_site: Site, document: dict[str, Any]
) -> None:
    for path in ("/v1/models", "/health", "/health/live", "/version", "/fleet"):
        schema = document["paths"][path]["get"]["responses"]["200"]["content"]
        check(shared_site.get(path).json(), schema["application/json"]["schema"], document)


def test_what_the_document_invites_never_breaks_the_server(
    shared_site: Site, document: dict[str, Any]
) -> None:
    """A fuzzer over the document: every answer is below 500, or says why it cannot be served."""
    import schemathesis

    api = schemathesis.openapi.from_dict(document)
    operations = [found.ok() for found in api.get_all_operations()]
    served = [one for one in operations if one.path not in ENDLESS]
    assert len(served) > 20

    @settings(
        max_examples=120,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def fuzz(data: st.DataObject) -> None:
        operation = data.draw(st.sampled_from(served))
        mode = data.draw(st.sampled_from(schemathesis.GenerationMode))
        case = data.draw(operation.as_strategy(generation_mode=mode))
        if isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = MODEL
        sent = {"json": case.body} if isinstance(case.body, dict | list) else {}
        response = shared_site.request(case.method, case.formatted_path, **sent)
        assert response.status_code < 500, (case.formatted_path, case.body, response.text)

    fuzz()
