"""Prompts of a request become ids."""

from __future__ import annotations

import pytest

from baton.errors import InvalidRequest
from baton.protocol import (
    Encoded,
    EncodeText,
    Message,
    RequestError,
    Submit,
)
from baton_gateway.generation.output import Started
from baton_gateway.generation.request import ChatPrompt, TextPrompt
from tests.fakes.engine_runner import generation, run, text_of
from tests.fakes.gateway_engine import FakeEngine


def test_what_the_tokenizer_refuses() -> None:
    async def check(engine: FakeEngine) -> None:
        engine.tokenizer.refuse = RequestError(0, "no_chat_template", "This model cannot chat.")
        with pytest.raises(InvalidRequest, match="cannot chat") as caught:
            await text_of(engine, generation(prompts=(ChatPrompt(b"[]"),)))
        assert caught.value.code == "no_chat_template"

    run(check)


def test_many_prompts_keep_their_order() -> None:
    async def check(engine: FakeEngine) -> None:
        prompts = tuple(TextPrompt("x" * (1 + i % 7), add_special=False) for i in range(40))
        events = [e async for e in engine.generate(generation(prompts=prompts))]
        assert isinstance(events[0], Started)
        assert [len(ids) for ids in events[0].prompts] == [1 + i % 7 for i in range(40)]
        assert {m.model for m in engine.tokenizer.seen if isinstance(m, EncodeText)} == {"tiny"}

    run(check)


def test_ids_are_handed_through_as_they_came() -> None:
    async def check(engine: FakeEngine) -> None:
        answers: list[bytes] = []
        push = engine.tokenizer.push

        def note(message: Message) -> None:
            answers.extend([message.tokens] if isinstance(message, Encoded) else [])
            push(message)

        engine.tokenizer.push = note
        await text_of(engine, generation(n=2))
        submits = [m for m in engine.scheduler.seen if isinstance(m, Submit)]
        assert len(submits) == 2 and all(m.tokens is answers[0] for m in submits)

    run(check)
