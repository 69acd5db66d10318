"""POST /v1/chat/completions/batch: several conversations in one request."""

from __future__ import annotations

from tests.fakes.gateway_app import Site, chat, error_of
from tests.fakes.gateway_engine import MODEL

PATH = "/v1/chat/completions/batch"
USER = {"role": "user", "content": "hi"}


def test_each_conversation_has_the_answer_that_it_would_have_alone(shared_site: Site) -> None:
    conversations = [[USER], [{"role": "user", "content": "a b"}], [USER, USER]]
    fields = {"temperature": 1.5, "seed": 3, "max_tokens": 4}
    answer = shared_site.post(PATH, chat(messages=conversations, **fields)).json()
    alone = [
        shared_site.post("/v1/chat/completions", chat(messages=messages, **fields)).json()
        for messages in conversations
    ]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    for choice, single in zip(answer["choices"], alone, strict=True):
        assert choice | {"index": 0} == single["choices"][0]
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert answer["usage"][count] == sum(single["usage"][count] for single in alone)
    assert (answer["object"], answer["model"]) == ("chat.completion", MODEL)


def test_refusals_name_the_conversation(shared_site: Site) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    rows = [
        ({"messages": [USER]}, "messages[0]"),
        ({"messages": []}, "messages"),
        ({"messages": [[USER]] * 1000}, "messages"),
        ({"messages": [[USER], [USER, {"role": "x", "content": ""}]]}, "messages[1][1].role"),
        (
            {"messages": [[USER], [{"role": "user", "content": [image]}]]},
            "messages[1][0].content[0].image_url",
        ),
        ({"messages": [[USER]], "stream": True}, "stream"),
        ({"messages": [[USER]], "n": 2}, "n"),
    ]
    for fields, param in rows:
        found = error_of(shared_site.post(PATH, chat(**fields)))
        assert found["param"] == param, found
