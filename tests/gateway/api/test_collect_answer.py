"""Running a generation: errors before the first token, and what is closed when."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request

from baton.errors import Unavailable
from baton.protocol.packed_tokens import PackedTokens
from baton_gateway.api.collect_answer import collect, collect_all, opened
from baton_gateway.generation.output import Event, OutputDelta, Started
from tests.support.gateway.generation_requests import request_of

WORK = request_of(prompts=((1,),), n=2)


class Engine:
    """Answers "ab" and "ab", or breaks off before the first token."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.closed = error, False

    async def generate(self, work: Any, sink: Any = None) -> AsyncGenerator[Event, None]:
        try:
            yield Started((PackedTokens.of([1]),))
            if self.error is not None:
                raise self.error
            for choice in (0, 1):
                for text in ("a", "b"):
                    reason = "stop" if text == "b" else None
                    yield OutputDelta(choice, text, array("i", [5]), (1,), reason=reason)
        finally:
            self.closed = True


def _request(engine: Engine) -> Request:
    async def receive() -> Any:
        await asyncio.Event().wait()

    app = SimpleNamespace(state=SimpleNamespace(engine=engine))
    return Request({"type": "http", "app": app}, cast(Any, receive))


def test_whole_collects_every_choice() -> None:
    engine = Engine()
    started, choices = asyncio.run(collect(_request(engine), WORK))
    assert [(c.text, c.reason) for c in choices] == [("ab", "stop")] * 2
    assert len(started.prompts) == 1 and engine.closed


def test_the_error_of_one_generation_ends_all() -> None:
    engine = Engine()
    answers = asyncio.run(collect_all(_request(engine), [WORK, WORK]))
    assert [[c.text for c in choices] for _, choices in answers] == [["ab", "ab"]] * 2
    engine = Engine(Unavailable("gone"))
    with pytest.raises(Unavailable):
        asyncio.run(collect_all(_request(engine), [WORK, WORK]))
    assert engine.closed


def test_a_stream_is_opened_with_its_first_token() -> None:
    async def main() -> None:
        engine = Engine()
        started, deltas = await opened(_request(engine), WORK)
        assert (await anext(deltas)).text == "a" and not engine.closed
        await deltas.aclose()
        assert engine.closed and len(started.prompts) == 1

    asyncio.run(main())


@pytest.mark.parametrize("run", [collect, opened])
def test_an_error_before_the_first_token_is_raised(run: Any) -> None:
    engine = Engine(Unavailable("gone"))
    with pytest.raises(Unavailable, match="gone"):
        asyncio.run(run(_request(engine), WORK))
    assert engine.closed
