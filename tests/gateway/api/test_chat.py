"""POST /v1/chat/completions: whole and streamed, with all options."""

from __future__ import annotations

from typing import Any

import pytest

from baton.protocol import EncodeChat, Submit
from baton.protocol.token_columns import pack
from tests.fakes.gateway_app import Site, chat, events_of
from tests.fakes.gateway_engine import EOS, MODEL

REPLY = "Hello from Baton."


@pytest.mark.row("F18.01")
def test_whole(shared_site: Site) -> None:
    response = shared_site.chat(max_tokens=...)
    body = response.json()
    assert body["id"] == "chatcmpl-" + response.headers["x-request-id"][4:]
    assert (body["object"], body["model"]) == ("chat.completion", MODEL)
    assert body["system_fingerprint"].startswith("baton-") and body["created"] > 1.7e9
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"content": REPLY, "role": "assistant", "refusal": None, "annotations": []},
            "finish_reason": "stop",
            "stop_reason": None,
            "logprobs": None,
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": len(REPLY) + 1,
        "total_tokens": len(REPLY) + 4,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@pytest.mark.row("F18.01")
def test_streamed(shared_site: Site) -> None:
    response = shared_site.chat(stream=True, max_tokens=...)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert "content-length" not in response.headers
    *chunks, done = events_of(response.text)
    assert done == "[DONE]"
    assert {c["id"] for c in chunks} == {"chatcmpl-" + response.headers["x-request-id"][4:]}
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    choices = [c["choices"][0] for c in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["delta"].get("content", "") for c in choices) == REPLY
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert all("usage" not in c for c in chunks)


def test_events_are_numbered_if_they_can_be_resumed(shared_site: Site) -> None:
    plain = shared_site.chat(stream=True)
    assert all(line.startswith("data: ") for line in plain.text.split("\n\n") if line)
    response = shared_site.post(
        "/v1/chat/completions", chat(stream=True), headers={"x-stream-durable": "1"}
    )
    ids = [line[4:] for line in response.text.splitlines() if line.startswith("id: ")]
    name = "chatcmpl-" + response.headers["x-request-id"][4:]
    assert ids == [f"{name}:{i}" for i in range(len(ids))] and len(ids) > 4


def test_usage_comes_last(shared_site: Site) -> None:
    response = shared_site.chat(stream=True, n=2, stream_options={"include_usage": True})
    *chunks, last, done = events_of(response.text)
    assert done == "[DONE]" and last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (3, 8)
    assert all(c["usage"] is None for c in chunks)
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, done = events_of(shared_site.chat(stream=True, n=2, stream_options=options).text)
    counts = [c["usage"]["completion_tokens"] for c in chunks]
    assert counts[0] == 0 and counts == sorted(counts) and counts[-1] == 8
    assert {c["usage"]["prompt_tokens"] for c in chunks} == {3} and chunks[-1] == last | {
        key: chunks[-1][key] for key in ("id", "created")
    }
    alone = shared_site.chat(stream=True, stream_options={"continuous_usage_stats": True})
    assert all("usage" not in c for c in events_of(alone.text)[:-1])


def test_choices(shared_site: Site) -> None:
    body = shared_site.chat(n=3).json()
    assert [c["index"] for c in body["choices"]] == [0, 1, 2]
    assert {c["message"]["content"] for c in body["choices"]} == {REPLY[:4]}
    assert {c["finish_reason"] for c in body["choices"]} == {"length"}
    chunks = events_of(shared_site.chat(n=3, stream=True).text)[:-1]
    for index in range(3):
        parts = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert parts[0]["delta"]["role"] == "assistant"
        assert "".join(p["delta"].get("content", "") for p in parts) == REPLY[:4]


def test_stop_string(shared_site: Site) -> None:
    body = shared_site.chat(stop=["from"], max_tokens=...).json()["choices"][0]
    assert (body["message"]["content"], body["finish_reason"]) == ("Hello ", "stop")
    assert body["stop_reason"] == "from"
    shown = shared_site.chat(stop="from", include_stop_str_in_output=True, max_tokens=...)
    assert shown.json()["choices"][0]["message"]["content"] == "Hello from"


def test_logprobs(shared_site: Site) -> None:
    response = shared_site.chat(logprobs=True, top_logprobs=2)
    content = response.json()["choices"][0]["logprobs"]["content"]
    assert [t["token"] for t in content] == list("Hell")
    assert content[0]["bytes"] == [72]
    assert content[0]["logprob"] == pytest.approx(-0.73)
    assert [t["token"] for t in content[0]["top_logprobs"]] == ["a", "b"]
    assert "top_logprobs" not in content[0]["top_logprobs"][0]
    chunks = events_of(shared_site.chat(logprobs=True, top_logprobs=2, stream=True).text)[:-1]
    scored = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
    assert [entry for part in scored for entry in part["content"]] == content
    named = shared_site.chat(logprobs=True, top_logprobs=2, return_tokens_as_token_ids=True)
    as_ids = named.json()["choices"][0]["logprobs"]["content"]
    assert [t["token"] for t in as_ids] == [f"token_id:{ord(c)}" for c in "Hell"]
    assert [t["token"] for t in as_ids[0]["top_logprobs"]] == ["token_id:97", "token_id:98"]
    assert as_ids[0]["bytes"] == [72]


def test_prompt_logprobs(shared_site: Site) -> None:
    table = shared_site.chat(prompt_logprobs=1).json()["prompt_logprobs"]
    assert table[0] is None and len(table) == 3
    # "h" is token 104 of rank 7; "a" is the most probable in its place.
    assert table[1]["104"] == {"logprob": pytest.approx(-1.05), "rank": 7, "decoded_token": "h"}
    assert table[1]["97"]["rank"] == 1


def test_token_ids(shared_site: Site) -> None:
    body = shared_site.chat(return_token_ids=True, max_tokens=...).json()
    assert body["prompt_token_ids"] == [256, 104, 105]
    assert body["choices"][0]["token_ids"] == [*REPLY.encode(), EOS]
    chunks = events_of(shared_site.chat(return_token_ids=True, stream=True).text)[:-1]
    assert chunks[0]["prompt_token_ids"] == [256, 104, 105]
    ids = [i for c in chunks for i in c["choices"][0].get("token_ids", ())]
    assert ids == list(REPLY[:4].encode())


def test_what_the_tokenizer_is_told(own_site: Site) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}], "foo": 1},
        {"role": "assistant", "content": "He"},
    ]
    fields: dict[str, Any] = {
        "continue_final_message": True,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert own_site.chat(messages=messages, **fields).status_code == 200
    (asked,) = (m for m in own_site.engine.tokenizer.seen if isinstance(m, EncodeChat))
    assert asked.messages == (
        b'[{"role":"system","content":"Be brief."},'
        b'{"role":"user","content":[{"type":"text","text":"hi"}]},'
        b'{"role":"assistant","content":"He"}]'
    )
    assert asked.kwargs == b'{"enable_thinking":false}'
    assert (asked.add_generation_prompt, asked.continue_final_message) == (False, True)


def test_what_the_scheduler_is_told(own_site: Site) -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.3,
        "logit_bias": {"65": -100},
        "min_tokens": 2,
        "stop_token_ids": [66],
        "seed": -1,
    }
    assert own_site.chat(**fields).status_code == 200
    (submit,) = (m for m in own_site.engine.scheduler.seen if isinstance(m, Submit))
    told = submit.sampling
    assert (told.temperature, told.top_p, told.top_k, told.min_p) == (0.5, 0.9, 0, 0.1)
    assert (told.repetition_penalty, told.presence_penalty) == (1.1, 0.2)
    assert (told.frequency_penalty, told.logit_bias) == (-0.3, {65: -100.0})
    assert (told.min_tokens, told.stop_ids, told.seed) == (2, (EOS, 66), 2**64 - 1)
    assert (told.logprobs, told.prompt_logprobs, told.max_tokens) == (-1, -1, 4)


def test_seeds_are_fresh_unless_given(own_site: Site) -> None:
    for _ in range(3):
        own_site.chat()
    seeds = {m.sampling.seed for m in own_site.engine.scheduler.seen if isinstance(m, Submit)}
    assert len(seeds) == 3 and all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.row("F12.02")
@pytest.mark.parametrize("stream", [False, True])
def test_usage_tells_how_much_of_the_prompt_was_cached(own_site: Site, stream: bool) -> None:
    own_site.engine.scheduler.cached = 2
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    response = own_site.chat(n=2, **options)
    body = events_of(response.text)[-2] if stream else response.json()
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


@pytest.mark.row("F18.01")
def test_an_expected_output_is_drafted_and_counted(own_site: Site) -> None:
    """Tokens are bytes here: eleven come as expected, and six of the text do not."""
    expected = {"type": "content", "content": [{"type": "text", "text": "Hello from Earth."}]}
    for stream in (False, True):
        options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        response = own_site.chat(prediction=expected, max_tokens=..., **options)
        body = events_of(response.text)[-2] if stream else response.json()
        assert body["usage"]["completion_tokens_details"] == {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 11,
            "rejected_prediction_tokens": 6,
        }
    submits = [m for m in own_site.engine.scheduler.seen if isinstance(m, Submit)]
    assert {m.prediction for m in submits} == {pack(list(b"Hello from Earth."))}
    response = own_site.chat(prediction={"type": "content", "content": "x" * 600})
    assert response.status_code == 400 and response.json()["error"]["param"] == "prediction"
