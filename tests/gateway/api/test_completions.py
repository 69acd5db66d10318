"""POST /v1/completions: several prompts, echo, log-probabilities."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from starlette.requests import Request

from baton.protocol import Submit
from baton.protocol.packed_tokens import PackedTokens
from baton_gateway.api import answer as answers
from baton_gateway.generation.choice import Answer, Choice
from baton_gateway.generation.output import OutputDelta, Started, TokenLogprob
from baton_gateway.generation.request import GenerationRequest
from tests.fakes.gateway_app import Site, events_of
from tests.fakes.gateway_engine import MODEL

REPLY = "Hello from Baton."


@pytest.mark.row("F18.02")
def test_whole(shared_site: Site) -> None:
    body = shared_site.complete(max_tokens=...).json()
    assert body["id"].startswith("cmpl-")
    assert (body["object"], body["model"]) == ("text_completion", MODEL)
    assert body["choices"] == [
        {
            "index": 0,
            "text": REPLY[:16],
            "finish_reason": "length",
            "stop_reason": None,
            "logprobs": None,
        }
    ]
    assert body["usage"]["total_tokens"] == 3 + 16


@pytest.mark.row("F18.02")
def test_streamed(shared_site: Site) -> None:
    fields = {"stream": True, "n": 2, "prompt": ["a", "b"]}
    response = shared_site.complete(**fields, stream_options={"include_usage": True})
    *chunks, usage, done = events_of(response.text)
    assert done == "[DONE]" and usage["choices"] == []
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (4, 16)
    for index in range(4):
        parts = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert "".join(p["text"] for p in parts) == REPLY[:4]
        assert [p["finish_reason"] for p in parts][-1] == "length"
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, done = events_of(shared_site.complete(**fields, stream_options=options).text)
    counts = [c["usage"]["completion_tokens"] for c in chunks]
    assert counts[0] < 16 and counts == sorted(counts) and counts[-1] == 16
    assert {c["usage"]["prompt_tokens"] for c in chunks} == {4}


@pytest.mark.parametrize(
    ("prompt", "count", "tokens"),
    [("hi", 1, 3), (["a", "bc"], 2, 5), ([104, 105], 1, 2), ([[104], [105, 33]], 2, 3)],
)
def test_kinds_of_prompts(shared_site: Site, prompt: object, count: int, tokens: int) -> None:
    body = shared_site.complete(prompt=prompt).json()
    assert len(body["choices"]) == count and body["usage"]["prompt_tokens"] == tokens


def test_echo(shared_site: Site) -> None:
    body = shared_site.complete(prompt=["é", "b"], echo=True).json()
    assert [c["text"] for c in body["choices"]] == ["é" + REPLY[:4], "b" + REPLY[:4]]
    ids = shared_site.complete(prompt=[256, 104, 105], echo=True).json()
    assert ids["choices"][0]["text"] == "hi" + REPLY[:4]
    chunks = events_of(shared_site.complete(echo=True, stream=True).text)[:-1]
    assert "".join(c["choices"][0]["text"] for c in chunks) == "hi" + REPLY[:4]


def test_logprobs(shared_site: Site) -> None:
    found = shared_site.complete(logprobs=1).json()["choices"][0]["logprobs"]
    assert found["tokens"] == list("Hell") and found["text_offset"] == [0, 1, 2, 3]
    assert found["token_logprobs"] == pytest.approx([-0.73, -1.02, -1.09, -1.09])
    # The best one, and the sampled one when it is another.
    assert list(found["top_logprobs"][0]) == ["a", "H"]
    named = shared_site.complete(logprobs=1, return_tokens_as_token_ids=True)
    as_ids = named.json()["choices"][0]["logprobs"]
    assert as_ids["tokens"] == [f"token_id:{ord(c)}" for c in "Hell"]
    assert list(as_ids["top_logprobs"][0]) == ["token_id:97", "token_id:72"]
    assert as_ids["text_offset"] == found["text_offset"]


def test_logprobs_of_an_echoed_prompt(shared_site: Site) -> None:
    whole = shared_site.complete(prompt="é!", echo=True, logprobs=0, max_tokens=1)
    choice = whole.json()["choices"][0]
    found = choice["logprobs"]
    assert choice["text"] == "é!H"
    assert found["tokens"] == ["<s>", "bytes:\\xc3", "bytes:\\xa9", "!", "H"]
    # The first token has no place in the text, the two halves of a character share one.
    assert found["text_offset"] == [0, 0, 1, 1, 2]
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    assert found["token_logprobs"][1:] == pytest.approx([-1.96, -1.70, -0.34, -0.73])
    chunks = events_of(
        shared_site.complete(prompt="é!", echo=True, logprobs=0, max_tokens=1, stream=True).text
    )[:-1]
    streamed: dict[str, list[object]] = {key: [] for key in found}
    for chunk in chunks:
        for key, values in (chunk["choices"][0]["logprobs"] or {}).items():
            streamed[key] += values
    assert streamed == found


def test_scoring_a_prompt_without_going_on(shared_site: Site) -> None:
    """What evaluation harnesses do: echo, log-probabilities, no new token."""
    body = shared_site.complete(echo=True, logprobs=1, max_tokens=0).json()
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("hi", "length")
    assert choice["logprobs"]["tokens"] == ["<s>", "h", "i"]
    assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx([-1.05, -1.06])
    assert body["usage"]["completion_tokens"] == 0


def test_prompt_logprobs(shared_site: Site) -> None:
    choice = shared_site.complete(prompt_logprobs=0).json()["choices"][0]
    assert choice["prompt_logprobs"][0] is None
    assert list(choice["prompt_logprobs"][2]) == ["105"]


def test_token_ids(shared_site: Site) -> None:
    choice = shared_site.complete(return_token_ids=True).json()["choices"][0]
    assert choice["prompt_token_ids"] == [256, 104, 105]
    assert choice["token_ids"] == list(REPLY[:4].encode())


def scripted(scores: dict[int, float]) -> Any:
    """An answer of one-token choices whose log-probabilities are given."""

    async def answer(request: Request, generation: GenerationRequest) -> Answer:
        assert generation.sampling.params.logprobs == 0
        started = Started(tuple(PackedTokens.of([1]) for _ in generation.prompts))
        choices = [Choice() for _ in range(generation.num_running)]
        for i, choice in enumerate(choices):
            scored = TokenLogprob(65 + i, scores[i], 1, ())
            choice.add(OutputDelta(i, str(i), array("i", [65 + i]), (1,), (scored,), reason="stop"))
        return started, choices

    return answer


def test_best_of_ranks_by_log_probability(
    shared_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {0: -3.0, 1: -1.0, 2: -2.0, 3: -0.5, 4: -4.0, 5: -0.1}
    monkeypatch.setattr(answers, "collect", scripted(scores))
    body = shared_site.complete(prompt=["a", "b"], n=2, best_of=3).json()
    assert [(c["index"], c["text"]) for c in body["choices"]] == [
        (0, "1"), (1, "2"), (2, "5"), (3, "3"),
    ]  # fmt: skip
    assert all(c["logprobs"] is None for c in body["choices"])
    assert body["usage"]["completion_tokens"] == 6


def test_best_of_samples_every_candidate(own_site: Site) -> None:
    body = own_site.complete(best_of=3, seed=7).json()
    assert [c["text"] for c in body["choices"]] == [REPLY[:4]]
    assert body["usage"]["completion_tokens"] == 12
    submits = [m for m in own_site.engine.scheduler.seen if isinstance(m, Submit)]
    assert len({s.sampling.seed for s in submits}) == 3


def test_best_of_that_changes_nothing(shared_site: Site) -> None:
    assert shared_site.complete(best_of=2, n=2).status_code == 200


@pytest.mark.row("F12.02")
@pytest.mark.parametrize("stream", [False, True])
def test_usage_tells_how_much_of_the_prompts_was_cached(own_site: Site, stream: bool) -> None:
    own_site.engine.scheduler.cached = 2
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    response = own_site.complete(prompt=["one", "two", "six"], n=2, **options)
    body = events_of(response.text)[-2] if stream else response.json()
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 6}


@pytest.mark.row("F13.03")
def test_priority_is_handed_to_the_scheduler(own_site: Site) -> None:
    own_site.chat(priority=-3)
    own_site.complete(priority=4)
    submits = [m for m in own_site.engine.scheduler.seen if isinstance(m, Submit)]
    assert [submit.priority for submit in submits] == [-3, 4]
