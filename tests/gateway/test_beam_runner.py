"""Beam search through the engine, with failures."""

from __future__ import annotations

import asyncio

import pytest

from baton.errors import InvalidRequest, ServerFault
from baton.protocol import Abort, Decode, Grammar, Sampling, Submit
from baton.protocol.token_columns import unpack
from baton_gateway.generation.output import OutputDelta, TokenLogprob
from baton_gateway.generation.request import BeamSearchOptions
from tests.fakes.engine_runner import admitted, generation, run
from tests.fakes.gateway_app import (
    Site,
    chat,
    error_of,
    site,
)
from tests.fakes.gateway_engine import EOS, FakeEngine

pytestmark = pytest.mark.row("F09.11")


async def outputs(engine: FakeEngine, **fields: object) -> dict[int, OutputDelta]:
    """The whole of each choice."""
    fields = {"n": 2, "max_tokens": 3, "beams": BeamSearchOptions(2)} | fields
    found: dict[int, OutputDelta] = {}
    async for event in engine.generate(generation(**fields)):
        if isinstance(event, OutputDelta):
            before = found.get(event.choice)
            found[event.choice] = before.then(event) if before else event
    return found


def test_the_best_outputs_in_order() -> None:
    """The script finds 'a' most probable after anything, then 'b', each e times less than this."""

    async def check(engine: FakeEngine) -> None:
        engine.scheduler.cached = 2
        found = await outputs(engine)
        assert [found[i].text for i in (0, 1)] == ["aaa", "aab"]
        assert [(d.reason, d.stop) for d in found.values()] == [("length", None)] * 2
        assert found[0].cached == 2
        assert [list(d.tokens) for d in found.values()] == [[97, 97, 97], [97, 97, 98]]
        assert not found[0].logprobs and not engine.scheduler.live
        submits = [m for m in engine.scheduler.seen if isinstance(m, Submit)]
        logs = [unpack(m.log).tobytes()[::4].decode() for m in submits]
        assert logs == ["", "a", "b", "aa", "ab"]
        for submit, log in zip(submits, logs, strict=True):
            assert list(unpack(submit.tokens)) == [256, 104, 105]
            wanted = Sampling(max_tokens=len(log) + 1, temperature=0.0, logprobs=4)
            assert submit.sampling == wanted
        assert len({m.handle for m in submits}) == len({m.request for m in submits}) == 5
        assert not [m for m in engine.scheduler.seen if isinstance(m, Abort)]
        # Nothing but the outputs is ever decoded.
        decodes = [m for m in engine.tokenizer.seen if isinstance(m, Decode)]
        assert sum(len(unpack(m.counts, "B")) for m in decodes) == 2

    run(check)


def test_log_probabilities_and_several_prompts() -> None:
    async def check(engine: FakeEngine) -> None:
        found = await outputs(
            engine, prompts=((97,), (98,)), sampling=Sampling(max_tokens=0, logprobs=1)
        )
        assert [found[i].text for i in range(4)] == ["aaa", "aab"] * 2
        last: TokenLogprob = found[3].logprobs[-1]
        assert (last.token, last.rank, last.top[0][0]) == (98, 2, 97)
        assert last.logprob == pytest.approx(last.top[0][1] - 1)
        submits = [m for m in engine.scheduler.seen if isinstance(m, Submit)]
        assert [list(unpack(m.tokens)) for m in submits[:2]] == [[97], [98]]

    run(check)


def test_ids_that_end_an_output() -> None:
    async def check(engine: FakeEngine) -> None:
        sampling = Sampling(max_tokens=0, stop_ids=(98,))
        found = await outputs(
            engine, sampling=sampling, beams=BeamSearchOptions(2, early_stopping=True)
        )
        assert (found[0].text, found[0].reason, found[0].stop) == ("a", "stop", 98)
        assert (found[1].text, found[1].reason, found[1].stop) == ("", "stop", 98)
        shown = await outputs(
            engine,
            sampling=sampling,
            include_stop=True,
            beams=BeamSearchOptions(2, early_stopping=True),
        )
        assert [d.text for d in shown.values()] == ["ab", "b"]

    run(check)


def test_leaving_aborts_the_probes() -> None:
    async def check(engine: FakeEngine) -> None:
        engine.scheduler.hold = True
        task = asyncio.create_task(outputs(engine))
        await admitted(engine)
        (probe,) = engine.scheduler.live
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert probe in engine.scheduler.aborted and not engine.scheduler.live

    run(check)


def test_a_lost_scheduler_and_a_lost_tokenizer_are_a_pause() -> None:
    async def check(engine: FakeEngine) -> None:
        plain = await outputs(engine, max_tokens=8)
        engine.scheduler.pace = 0.02
        task = asyncio.create_task(outputs(engine, max_tokens=8))
        for _ in range(3):
            await asyncio.sleep(0.05)
            engine.scheduler.restart()
            engine.tokenizer.restart()
        again = await task
        assert {i: d.tokens for i, d in again.items()} == {i: d.tokens for i, d in plain.items()}
        assert {i: d.text for i, d in again.items()} == {i: d.text for i, d in plain.items()}

    run(check)


def test_it_takes_no_longer_than_a_request_may() -> None:
    async def check(engine: FakeEngine) -> None:
        engine.scheduler.hold = True
        with pytest.raises(ServerFault, match="longer than this server allows"):
            await outputs(engine)
        assert not engine.scheduler.live

    run(check, request_timeout_seconds=0.2)


def test_a_grammar_from_elsewhere_is_not_ignored() -> None:
    async def check(engine: FakeEngine) -> None:
        sampling = Sampling(max_tokens=0, grammar=Grammar("json_object", ""))
        with pytest.raises(InvalidRequest, match="follow a grammar") as caught:
            await outputs(engine, sampling=sampling)
        assert caught.value.param == "use_beam_search"

    run(check)


def test_probes_have_what_the_request_has() -> None:
    async def check(engine: FakeEngine) -> None:
        await outputs(engine, priority=-3, tenant="t", deadline_ms=60_000)
        submits = [m for m in engine.scheduler.seen if isinstance(m, Submit)]
        assert {(m.priority, m.tenant) for m in submits} == {(-3, "t")}
        assert all(0 < deadline <= 60_000 for deadline in engine.scheduler.deadlines)

    run(check)


def test_more_alternatives_than_a_worker_tells() -> None:
    async def check(engine: FakeEngine) -> None:
        sampling = Sampling(max_tokens=0, stop_ids=tuple(range(20)))
        with pytest.raises(InvalidRequest, match="alternatives per step") as caught:
            await outputs(engine, sampling=sampling, beams=BeamSearchOptions(16))
        assert caught.value.param == "beam_width"
        assert not [m for m in engine.scheduler.seen if isinstance(m, Submit)]

    run(check)


@pytest.fixture
def here() -> Site:
    with site(max_choices=4) as one:
        yield one  # type: ignore[misc]


def test_over_http(here: Site) -> None:
    fields = {"use_beam_search": True, "n": 2, "max_tokens": 3}
    answer = here.complete(**fields, logprobs=1).json()
    assert [c["text"] for c in answer["choices"]] == ["aaa", "aab"]
    assert answer["choices"][1]["logprobs"]["tokens"] == ["a", "a", "b"]
    assert answer["usage"]["completion_tokens"] == 6
    answer = here.post("/v1/chat/completions", chat(**fields)).json()
    assert [c["message"]["content"] for c in answer["choices"]] == ["aaa", "aab"]
    streamed = here.complete(**fields, stream=True)
    assert streamed.status_code == 200 and '"text":"aab"' in streamed.text
    refused = here.complete(use_beam_search=True, beam_width=5)
    assert error_of(refused)["param"] == "n" and refused.status_code == 400
    assert (
        EOS not in here.complete(**fields, return_token_ids=True).json()["choices"][0]["token_ids"]
    )


def test_all_beams_count_whatever_is_asked_of_them() -> None:
    asked = {"use_beam_search": True, "beam_width": 4, "n": 1, "max_tokens": 3}
    with site(concurrent_choices=3) as here:
        assert here.complete(**asked | {"beam_width": 3}).status_code == 200
        refused = here.complete(**asked)
        assert (refused.status_code, error_of(refused)["code"]) == (429, "rate_limit_exceeded")
    with site(tokens_per_minute=1000) as here:
        left = [
            int(here.complete(**fields).headers["x-ratelimit-remaining-tokens"])
            for fields in (asked, {"max_tokens": 1})
        ]
        (prompt,) = {1000 - left[0]}
        assert left[0] - left[1] == prompt + 4 * 3
