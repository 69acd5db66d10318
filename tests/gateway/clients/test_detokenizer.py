"""Detokenisation with a tokenizer that is late, repeats, loses state or is replaced."""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Iterable
from typing import Any, cast

import pytest

from baton.protocol import Decode, DecodedText, Envelope, Message, Sampling
from baton.protocol.packed_tokens import PackedTokens
from baton.protocol.token_columns import unpack
from baton_gateway.clients.connection import Connection
from baton_gateway.clients.detokenizer import DetokenizerClient
from baton_gateway.generation.output import OutputDelta
from baton_gateway.generation.output_queue import OutputQueue
from baton_gateway.generation.sequence import Sequence
from baton_gateway.http.write_batch import WriteBatch
from tests.fakes.gateway_engine import EOS, FakeTokenizer

TEXT = "Grüße, 🫠 end of it"


class Home:
    """A connection whose answers wait until the test lets them go."""

    def __init__(self) -> None:
        self.tokenizer = FakeTokenizer()
        self.answers: list[DecodedText] = []
        self.tokenizer.push = lambda message: self.answers.append(cast(DecodedText, message))
        self.sent: list[Decode] = []
        self.up = True

    async def post(self, message: Message, envelope: Envelope | None = None) -> bool:
        if self.up:
            self.sent.append(cast(Decode, message))
            self.tokenizer.handle(message, Envelope())
        return self.up


class Bench:
    """Some sequences, two homes, and the decoding between them."""

    def __init__(self, count: int = 3, stops: tuple[str, ...] = ()) -> None:
        self.homes = [Home(), Home()]
        self.live = {
            handle: Sequence(
                handle, "r", handle, PackedTokens.of([1]), Sampling(99, stop_ids=(EOS,)),
                OutputQueue(1), stops=stops,
            )
            for handle in range(count)
        }  # fmt: skip
        self.aborted: list[int] = []
        self.burst = WriteBatch()
        self.decoding = DetokenizerClient(self.live, self._pick, self._abort, self.burst)

    def _pick(self, model: str) -> Connection | None:
        up = [home for home in self.homes if home.up]
        return cast(Connection, up[0]) if up else None

    async def _abort(self, sequences: Iterable[Sequence]) -> None:
        self.aborted += [s.handle for s in sequences]

    async def tokens(self, ids: list[int], *, last: bool = False) -> None:
        for sequence in self.live.values():
            sequence.extend(len(sequence.log), array("i", ids), [])
            sequence.reason = "stop" if last else None
        await self.decoding.add(self.live.values())

    async def answer(self, home: Home, count: int = 10**9) -> None:
        for _ in range(min(count, len(home.answers))):
            await self.decoding.receive(home.answers.pop(0), cast(Connection, home))

    async def texts(self) -> set[str]:
        return {"".join([d.text async for d in s.stream]) for s in self.live.values()}


def _run(work: Any) -> Any:
    return asyncio.run(work)


class Body:
    """Notes that something was written."""

    def __init__(self, events: list[str]) -> None:
        self._events = events

    def write(self, data: bytes) -> None:
        self._events.append("written")

    def cut(self) -> None:
        self._events.append("cut")


def test_the_text_of_one_message_leaves_together() -> None:
    async def main() -> None:
        bench, events = Bench(), list[str]()

        class Sink:
            def write(self, delta: OutputDelta) -> bool:
                events.append("made")
                bench.burst.add(Body(events), delta.text.encode())
                return True

        for sequence in bench.live.values():
            sequence.stream = OutputQueue(1, Sink())
        readers = [asyncio.ensure_future(anext(s.stream)) for s in bench.live.values()]
        await asyncio.sleep(0)
        for letter in b"ab":
            await bench.tokens([letter])
        await bench.answer(bench.homes[0])
        assert events == 2 * (["made"] * 3 + ["written"] * 3)
        for reader in readers:
            reader.cancel()

    _run(main())


def test_one_message_of_few_rows_per_step_and_tokenizer() -> None:
    async def main() -> None:
        bench = Bench()
        ids = [*TEXT.encode(), EOS]
        for i, token in enumerate(ids):
            await bench.tokens([token], last=i == len(ids) - 1)
            await bench.answer(bench.homes[0])
        assert len(bench.homes[0].sent) == len(ids)
        assert len(bench.homes[0].sent[0].open) == 3 and not bench.homes[0].sent[1].open
        # The stop id itself is not decoded: its step only says that it was the last.
        last = bench.homes[0].sent[-1]
        assert set(unpack(last.counts, "B")) == {0} and set(unpack(last.last, "B")) == {1}
        assert await bench.texts() == {TEXT}

    _run(main())


def test_many_rows_come_in_several_messages() -> None:
    async def main() -> None:
        bench = Bench(count=150)
        await bench.tokens(list(TEXT.encode()), last=True)
        assert [len(m.handles) // 4 for m in bench.homes[0].sent] == [64, 64, 22]
        await bench.answer(bench.homes[0])
        assert await bench.texts() == {TEXT}

    _run(main())


@pytest.mark.parametrize("seed", range(30))
def test_text_survives_everything(seed: int) -> None:
    """Random lateness, amnesia, failed sends and moves between tokenizers: the text is exact."""
    chance = random.Random(seed)

    async def main() -> None:
        bench = Bench(stops=("zzz",))
        ids = [*(TEXT * 3).encode(), EOS]
        at = 0
        while at < len(ids):
            step = chance.randint(1, 4)
            await bench.tokens(ids[at : at + step], last=at + step >= len(ids))
            at += step
            await chaos(bench)
        for home in bench.homes:
            home.up = True
        for _ in range(20):
            await bench.decoding.place()
            for home in bench.homes:
                await bench.answer(home)
        assert await bench.texts() == {TEXT * 3}
        assert all(len(s.log) == s.delivered for s in bench.live.values())

    async def chaos(bench: Bench) -> None:
        home = chance.choice(bench.homes)
        match chance.randint(0, 7):
            case 0:
                home.tokenizer.states = {}
            case 1:
                home.tokenizer.forget_next = True
            case 2:
                home.up, home.answers, home.tokenizer.states = False, [], {}
                await bench.decoding.lost(cast(Connection, home))
            case 3:
                home.up = True
                await bench.decoding.place()
            case _:
                await bench.answer(home, chance.randint(0, 3))

    _run(main())


def test_stop_string_ends_it_and_tells_the_scheduler() -> None:
    async def main() -> None:
        bench = Bench(stops=("end",))
        for token in TEXT.encode():
            await bench.tokens([token])
        await bench.answer(bench.homes[0])
        assert await bench.texts() == {TEXT[: TEXT.index("end")]}
        assert sorted(bench.aborted) == [0, 1, 2]

    _run(main())


def test_backlog_is_sent_in_rows_that_fit() -> None:
    async def main() -> None:
        bench = Bench(count=1)
        bench.homes[0].up = bench.homes[1].up = False
        await bench.tokens(list(b"x" * 600), last=True)
        bench.homes[0].up = True
        await bench.decoding.place()
        assert [list(unpack(m.counts, "B")) for m in bench.homes[0].sent] == [[255], [255], [90]]
        await bench.answer(bench.homes[0])
        assert await bench.texts() == {"x" * 600}

    _run(main())


def test_close_drops_the_states_of_those_who_left() -> None:
    async def main() -> None:
        bench = Bench()
        await bench.tokens([65])
        await bench.decoding.close(bench.live.values())
        assert not bench.homes[0].tokenizer.states

    _run(main())
