"""Only the last tokens of a prompt are used, where that was asked for."""

from __future__ import annotations

from baton.protocol import Submit
from baton.protocol.token_columns import unpack
from tests.fakes.gateway_app import Site, chat, completion, error_of
from tests.fakes.gateway_engine import BOS, MAX_LENGTH

LONG = "x" * (2 * MAX_LENGTH)


def submitted(here: Site) -> list[int]:
    last = [m for m in here.engine.scheduler.seen if isinstance(m, Submit)][-1]
    return list(unpack(last.tokens))


def test_the_end_of_a_prompt_is_kept(own_site: Site) -> None:
    for send in (
        lambda k: own_site.complete(prompt="abcdef", truncate_prompt_tokens=k),
        lambda k: own_site.complete(prompt=[97, 98, 99, 100, 101, 102], truncate_prompt_tokens=k),
        lambda k: own_site.post(
            "/v1/chat/completions",
            chat(messages=[{"role": "user", "content": "abcdef"}], truncate_prompt_tokens=k),
        ),
    ):
        response = send(2)
        assert response.status_code == 200, response.text
        assert submitted(own_site) == [101, 102]
        assert response.json()["usage"]["prompt_tokens"] == 2
        send(50)
        assert submitted(own_site)[-6:] == [97, 98, 99, 100, 101, 102]


def test_minus_one_keeps_what_leaves_room_for_the_answer(own_site: Site) -> None:
    for prompt in (LONG, [120] * (2 * MAX_LENGTH)):
        refused = own_site.complete(prompt=prompt, max_tokens=12)
        assert error_of(refused)["code"] == "context_length_exceeded"
        response = own_site.complete(prompt=prompt, max_tokens=12, truncate_prompt_tokens=-1)
        assert response.status_code == 200, response.text
        assert submitted(own_site) == [120] * (MAX_LENGTH - 12)
    own_site.complete(prompt="a", truncate_prompt_tokens=-1)
    assert submitted(own_site) == [BOS, 97]


def test_what_cannot_be_cut(shared_site: Site) -> None:
    for fields, code in (
        ({"truncate_prompt_tokens": 0}, "invalid_value"),
        ({"truncate_prompt_tokens": -2}, "integer_below_min_value"),
        ({"truncate_prompt_tokens": 4, "echo": True}, "unsupported_value"),
        ({"truncate_prompt_tokens": 4, "prompt": "x" * 100_000}, "context_length_exceeded"),
    ):
        refused = error_of(shared_site.post("/v1/completions", completion(**fields)))
        assert refused["code"] == code
    much = completion(prompt="x" * 2000, truncate_prompt_tokens=MAX_LENGTH + 1)
    assert error_of(shared_site.post("/v1/completions", much))["code"] == "context_length_exceeded"
