"""The sequences of a request."""

from __future__ import annotations

from baton.protocol import (
    Decode,
    Sampling,
    Submit,
)
from baton.protocol.token_columns import derive_seed, unpack
from baton_gateway.generation.output import OutputDelta
from baton_gateway.generation.request import TextPrompt
from tests.fakes.engine_runner import generation, run, text_of
from tests.fakes.gateway_engine import EOS, FakeEngine


def test_choices_differ_in_seed_alone() -> None:
    async def check(engine: FakeEngine) -> None:
        request = generation(prompts=(TextPrompt("a"), (98,)), n=2, max_tokens=3)
        assert await text_of(engine, request) == dict.fromkeys(range(4), "Hel")
        submits = [m for m in engine.scheduler.seen if isinstance(m, Submit)]
        assert [list(unpack(m.tokens)) for m in submits] == [[256, 97]] * 2 + [[98]] * 2
        assert [m.sampling.seed for m in submits] == [derive_seed(7, c) for c in (0, 1, 0, 1)]
        assert len({m.handle for m in submits}) == 4
        decodes = [m for m in engine.tokenizer.seen if isinstance(m, Decode)]
        assert len(decodes) == 3 and all(len(m.handles) == 16 for m in decodes)

    run(check)


def test_room_is_the_rest_of_the_context() -> None:
    async def check(engine: FakeEngine) -> None:
        await text_of(engine, generation())
        (submit,) = (m for m in engine.scheduler.seen if isinstance(m, Submit))
        assert submit.sampling.max_tokens == 512 - 3
        assert submit.sampling.stop_ids == (EOS,)

    run(check)


def test_client_stop_ids_come_with_the_models() -> None:
    async def check(engine: FakeEngine) -> None:
        sampling = Sampling(max_tokens=0, stop_ids=(ord("f"),))
        events = [e async for e in engine.generate(generation(sampling=sampling))]
        last = events[-1]
        assert isinstance(last, OutputDelta) and (last.reason, last.stop) == ("stop", ord("f"))
        assert "".join(e.text for e in events if isinstance(e, OutputDelta)) == "Hello "
        ignoring = generation(sampling=sampling, ignore_eos=True, include_stop=True)
        assert await text_of(engine, ignoring) == {0: "Hello f"}
        submits = [m for m in engine.scheduler.seen if isinstance(m, Submit)]
        assert [m.sampling.stop_ids for m in submits] == [(EOS, ord("f")), (ord("f"),)]

    run(check)
