"""Requests of /tokenize and /detokenize: defaults, and what must be given."""

from __future__ import annotations

import pytest

from baton.errors import InvalidRequest
from baton_gateway.http.body import build
from baton_gateway.schemas.tokenize import DetokenizeRequest, TokenizeRequest


def test_values_do_not_leak_between_requests() -> None:
    first = build({"prompt": "x"}, TokenizeRequest)
    assert first.chat_template_kwargs == {} and first.tools == []
    assert build({"prompt": "x"}, TokenizeRequest) == first


def test_a_prompt_or_messages() -> None:
    both = {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    for given in ({}, both):
        with pytest.raises(InvalidRequest) as caught:
            build(given, TokenizeRequest)
        assert caught.value.param == "prompt"


def test_ids_are_integers() -> None:
    assert build({"tokens": [1, 2]}, DetokenizeRequest).tokens == (1, 2)
    with pytest.raises(InvalidRequest) as caught:
        build({"tokens": [1, True]}, DetokenizeRequest)
    assert caught.value.param == "tokens[1]"
