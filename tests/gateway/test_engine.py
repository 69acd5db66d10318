"""The life cycle of requests, and the loss of services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from baton.errors import ServerFault
from baton.net.discovery import StaticDirectory, socket_path
from baton.net.sockets import AsyncClient, Server
from baton.net.topology import FRONTEND, TOKENIZE, Link
from baton.protocol import (
    Decode,
    EncodeChat,
    Submit,
)
from baton.protocol.token_columns import unpack
from baton_gateway.config import Config
from baton_gateway.engine import Engine
from baton_gateway.generation.output import OutputDelta, Started
from baton_gateway.generation.request import ChatPrompt
from tests.fakes.engine_runner import (
    REPLY,
    admitted,
    generation,
    run,
    text_of,
)
from tests.fakes.gateway_engine import (
    EOS,
    FakeEngine,
    FakeScheduler,
    FakeServer,
    FakeTokenizer,
)


def test_one_request_in_order() -> None:
    async def check(engine: FakeEngine) -> None:
        trace = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
        prompt = ChatPrompt(b'[{"role":"user","content":"hi"}]')
        events = [e async for e in engine.generate(generation(prompts=(prompt,), trace=trace))]
        assert isinstance(events[0], Started) and list(events[0].prompts[0]) == [256, 104, 105]
        deltas = [e for e in events if isinstance(e, OutputDelta)]
        assert "".join(d.text for d in deltas) == REPLY
        assert [i for d in deltas for i in d.tokens] == [*REPLY.encode(), EOS]
        assert [d.reason for d in deltas] == [None] * (len(deltas) - 1) + ["stop"]
        kinds = [type(m) for m in engine.tokenizer.seen]
        assert kinds[0] is EncodeChat and set(kinds[1:]) == {Decode}
        assert [type(m) for m in engine.scheduler.seen] == [Submit]
        # The trace goes with the work, under the gateway's own span when there is one.
        assert engine.tokenizer.traces[0] == trace == engine.scheduler.traces[0]

    run(check)


def test_stop_string_ends_the_run() -> None:
    async def check(engine: FakeEngine) -> None:
        engine.scheduler.reply = REPLY * 20
        events = [e async for e in engine.generate(generation(stops=("from", "zz")))]
        assert "".join(e.text for e in events if isinstance(e, OutputDelta)) == "Hello "
        last = events[-1]
        assert isinstance(last, OutputDelta) and (last.reason, last.stop) == ("stop", "from")
        assert engine.scheduler.aborted == [1] and not engine.scheduler.live
        shown = await text_of(engine, generation(stops=("from",), include_stop=True))
        assert shown == {0: "Hello from"}

    run(check)


def test_leaving_aborts_at_once() -> None:
    async def check(engine: FakeEngine) -> None:
        engine.scheduler.reply, engine.scheduler.pace = REPLY * 20, 0.01
        events = engine.generate(generation(n=2))
        await anext(events)
        await anext(events)
        await events.aclose()
        assert sorted(engine.scheduler.aborted) == [1, 2]
        assert isinstance(engine.tokenizer.seen[-1], Decode)
        assert sorted(unpack(engine.tokenizer.seen[-1].close, "I")) == [1, 2]
        assert not engine.tokenizer.states
        assert engine.snapshot()["services"][0]["detail"].endswith("0 requests")

    run(check)


@pytest.mark.parametrize("stops", [(), ("never", "on.!")])
def test_tokenizer_restart_loses_no_text(stops: tuple[str, ...]) -> None:
    async def check(engine: FakeEngine) -> None:
        engine.scheduler.reply, engine.scheduler.pace = "Grüße, 🫠 Baton. " * 8, 0.002
        plain = await text_of(engine, generation(stops=stops))
        texts = asyncio.create_task(text_of(engine, generation(stops=stops, n=3)))
        for _ in range(3):
            await asyncio.sleep(0.06)
            engine.tokenizer.restart()
        restarted = await texts
        assert plain == {0: engine.scheduler.reply}
        assert restarted == dict.fromkeys(range(3), plain[0])
        reopened = [o for m in engine.tokenizer.seen if isinstance(m, Decode) for o in m.open]
        assert len(reopened) > 4 and any(o.log for o in reopened)

    run(check)


def test_forgotten_states_are_opened_again() -> None:
    async def check(engine: FakeEngine) -> None:
        engine.scheduler.reply, engine.scheduler.pace = REPLY * 5, 0.002
        texts = asyncio.create_task(text_of(engine, generation(n=2)))
        for _ in range(3):
            await asyncio.sleep(0.03)
            engine.tokenizer.forget_next = True
        assert await texts == dict.fromkeys(range(2), REPLY * 5)

    run(check)


def test_long_silence_of_the_tokenizer_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """More tokens than fit into one row wait until a tokenizer is there again."""
    monkeypatch.setattr("baton.net.handshake.QUIET_SECONDS", 0.2)

    async def check(engine: FakeEngine) -> None:
        engine.scheduler.reply = REPLY * 20
        engine.scheduler.hold = True
        texts = asyncio.create_task(text_of(engine, generation()))
        await admitted(engine)
        engine.tokenizer.silent = True
        await asyncio.sleep(0.4)
        engine.scheduler.hold = False
        while engine.scheduler.live:
            engine.scheduler.step()
        await asyncio.sleep(0.1)
        engine.tokenizer.restart()
        engine.tokenizer.silent = False
        assert await texts == {0: REPLY * 20}

    run(check)


def test_deadline() -> None:
    async def check(engine: FakeEngine) -> None:
        engine.scheduler.hold = True
        with pytest.raises(ServerFault) as caught:
            await text_of(engine, generation())
        assert (caught.value.status, caught.value.code) == (504, "request_timeout")
        assert engine.scheduler.aborted == [1]

    run(check, request_timeout_seconds=0.2)


# The same over real sockets.


class Post:
    """A scripted server behind a bound socket, inside the test's event loop."""

    def __init__(self, link: Link, fake: FakeServer, folder: Path) -> None:
        self.server = Server(link, socket_path(folder, link))
        self.fake = fake
        self._task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        while True:
            for peer, envelope, message in self.server.drain():
                self.fake.push = lambda m, peer=peer: self.server.send(peer, m)  # type: ignore[assignment, misc]
                self.fake.handle(message, envelope)
            await asyncio.sleep(0.002)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.server.close()


@asynccontextmanager
async def real(folder: Path) -> AsyncIterator[tuple[Engine, Post, Post]]:
    config = Config(run_dir=folder, service_wait_seconds=2.0)
    tokenizer = Post(TOKENIZE, FakeTokenizer(), folder)
    scheduler = Post(FRONTEND, FakeScheduler(), folder)
    engine = Engine(config, StaticDirectory(config), AsyncClient)
    await engine.start()
    try:
        yield engine, tokenizer, scheduler
    finally:
        await engine.close()
        await tokenizer.close()
        await scheduler.close()


def test_over_sockets(run_dir: Path) -> None:
    async def main() -> None:
        async with real(run_dir) as (engine, tokenizer, scheduler):
            assert isinstance(scheduler.fake, FakeScheduler)
            assert await text_of(engine, generation()) == {0: REPLY}
            events = engine.generate(generation(n=2))
            scheduler.fake.hold = True
            await anext(events)
            await events.aclose()
            async with asyncio.timeout(60):
                while len(scheduler.fake.aborted) < 2:
                    await asyncio.sleep(0.01)
            scheduler.fake.hold = False
            scheduler.fake.reply, scheduler.fake.pace = REPLY * 3, 0.005
            texts = asyncio.create_task(text_of(engine, generation(n=3)))
            await asyncio.sleep(0.1)
            tokenizer.fake.restart()
            assert await texts == dict.fromkeys(range(3), REPLY * 3)
            names = {s["service"]: s["state"] for s in engine.snapshot()["services"]}
            assert names["tokenizer"] == names["scheduler"] == names["worker"] == "ready"

    asyncio.run(main())


def test_both_servers_come_late(run_dir: Path) -> None:
    async def main() -> None:
        config = Config(run_dir=run_dir, service_wait_seconds=5.0)
        engine = Engine(config, StaticDirectory(config), AsyncClient)
        await engine.start()
        texts = asyncio.create_task(text_of(engine, generation()))
        await asyncio.sleep(0.2)
        posts = [Post(TOKENIZE, FakeTokenizer(), run_dir), Post(FRONTEND, FakeScheduler(), run_dir)]
        assert await texts == {0: REPLY}
        await engine.close()
        for post in posts:
            await post.close()

    asyncio.run(main())
