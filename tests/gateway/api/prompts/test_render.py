"""A prompt as the model would read it: what is rendered is what would run."""

from __future__ import annotations

from baton.protocol import EncodeChat
from tests.fakes.gateway_app import Site, chat, completion, error_of
from tests.fakes.gateway_engine import BOS, MODEL

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def test_a_chat_is_rendered_but_not_run(own_site: Site) -> None:
    asked = chat(tools=[TOOL], tool_choice="none")
    answer = own_site.post("/v1/chat/completions/render", asked).json()
    assert answer == {
        "object": "render",
        "model": MODEL,
        "prompts": [
            {"prompt": "<s>hi", "token_ids": [BOS, 104, 105], "max_tokens": 4, "start": "content"}
        ],
    }
    encoded = [m for m in own_site.engine.tokenizer.seen if isinstance(m, EncodeChat)]
    assert b'"f"' in encoded[0].tools
    assert not own_site.engine.scheduler.seen and not own_site.engine.status.num_requests


def test_every_prompt_of_a_completion(shared_site: Site) -> None:
    body = completion(prompt=["a", "bc"], truncate_prompt_tokens=1, max_tokens=...)
    rendered = shared_site.post("/v1/completions/render", body).json()["prompts"]
    assert [one["token_ids"] for one in rendered] == [[97], [99]]
    assert all(one["start"] is None for one in rendered)


def test_other_apis_render_the_prompt_of_the_same_chat(shared_site: Site) -> None:
    expected = shared_site.post("/v1/chat/completions/render", chat()).json()
    message = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    assert shared_site.post("/v1/messages/render", message).json() == expected
    response = {"model": MODEL, "input": "hi", "max_output_tokens": 4}
    assert shared_site.post("/v1/responses/render", response).json() == expected


def test_what_would_be_refused_is_refused(shared_site: Site) -> None:
    for path, body, code in (
        ("/v1/chat/completions/render", chat(n=0), "integer_below_min_value"),
        ("/v1/chat/completions/render", chat(model="other"), "model_not_found"),
        ("/v1/chat/completions/render", chat(max_tokens=5000), "context_length_exceeded"),
        ("/v1/completions/render", completion(prompt=[[10**6]]), "invalid_value"),
    ):
        assert error_of(shared_site.post(path, body))["code"] == code
