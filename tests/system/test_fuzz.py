"""Well-formed nonsense against every service that binds a socket: no crash, no effect on others.

Frames that are not even messages never get this far: tests/shared/net/test_codec.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from baton import __version__
from baton.net.handshake import incarnation
from baton.net.sockets import Server
from baton.net.topology import (
    FLEET,
    FRONTEND,
    MEDIA,
    TOKENIZE,
)
from baton.process.rpc_server import RpcServer
from baton.protocol import (
    Beat,
    DrainWorker,
    Hello,
    MediaInfo,
    Plan,
    ProcessDied,
    Result,
    Sampling,
    SetRole,
    Submit,
    TokenizerInfo,
    Tokens,
    WorkerInfo,
)
from baton.protocol.token_columns import pack, unpack
from baton_mm_preprocess.config import Config as MediaConfig
from baton_mm_preprocess.model_info import Model
from baton_mm_preprocess.service import Preprocessor
from baton_scheduler.config import Config as SchedulerConfig
from baton_scheduler.service import Service
from baton_tokenizer.config import Config as TokenizerConfig
from baton_tokenizer.service import RequestHandler, Tokenizer
from baton_tokenizer.vocabulary.load import load
from baton_tokenizer.vocabulary.vocabulary import TokenizerVocabulary
from tests.fakes.hash_worker import FakeEngine, expected_tokens
from tests.fakes.random_messages import Inbox, of_struct, requests

PEERS = st.sampled_from([b"a", b"b", b"stranger"])
INFO = WorkerInfo(
    "m",
    num_pages=32,
    page_size=4,
    max_num_seqs=4,
    max_num_batched_tokens=16,
    max_model_len=64,
    vocab_size=300,
)


class Scheduler:
    """The scheduler's service without its sockets, with one gateway and one worker."""

    def __init__(self, **settings: Any) -> None:
        self.now = 0.0
        self.frontend, self.fleet = Inbox(), Inbox()
        self.service = Service(
            SchedulerConfig(**settings),
            cast(Server, self.frontend),
            cast(Server, self.fleet),
            self.clock,
        )
        self.frontend.put(b"a", Hello("gateway", "a", 1, __version__))
        self.fleet.put(b"a", Hello("worker", "a", 1, __version__, worker=INFO))
        self.frontend.put(b"a", Submit(1, "r", pack([1, 2, 3]), Sampling(max_tokens=8)))
        self.turn()

    def clock(self) -> float:
        self.now += 0.01
        return self.now

    def turn(self) -> None:
        self.service.turn()
        self.service.state.check()


OPEN = (Beat, DrainWorker, ProcessDied, SetRole)
"""What the scheduler hears from anybody, an operator for one, and answers or does."""
FRAMES = st.lists(
    st.one_of(
        st.tuples(st.just("frontend"), PEERS, requests(FRONTEND)),
        st.tuples(st.just("fleet"), PEERS, requests(FLEET)),
    ),
    max_size=12,
)


@given(frames=FRAMES)
@settings(max_examples=200, deadline=None)
def test_the_scheduler_takes_anything(frames: list[tuple[str, bytes, Any]]) -> None:
    scheduler = Scheduler()
    for link, peer, message in frames:
        getattr(scheduler, link).put(peer, message)
        scheduler.turn()


@given(answers=st.lists(of_struct(Result), max_size=6))
@settings(max_examples=300, deadline=None)
def test_the_scheduler_takes_any_answer_to_what_it_asked(answers: list[Result]) -> None:
    scheduler = Scheduler()
    for answer in answers:
        worker = scheduler.service.state.fleet.get("a")
        assert worker is not None
        if worker.flights:
            step = worker.flights.first.step
            scheduler.fleet.put(b"a", structs.replace(answer, epoch=1, step=step))
        scheduler.turn()


@given(frames=FRAMES)
@settings(max_examples=100, deadline=None)
def test_a_stranger_has_no_effect_on_the_scheduler(frames: list[tuple[str, bytes, Any]]) -> None:
    scheduler = Scheduler()
    state = scheduler.service.state
    before, running = replace(state.counters), state.num_running
    dropped = 0
    for link, _, message in frames:
        if not isinstance(message, Hello):
            getattr(scheduler, link).put(b"stranger", message)
            scheduler.turn()
            dropped += not isinstance(message, OPEN)
    assert state.counters == before
    assert state.num_running == running == 1
    assert scheduler.frontend.dropped + scheduler.fleet.dropped == dropped


class Line:
    """One real worker's plans and results, on a line that keeps, repeats and swaps them."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(max_steps_per_plan=1, max_worker_losses=1000)
        self.engine = FakeEngine(INFO)
        self.told: list[Result] = []
        self.wrong = 0
        """Frames that must be dropped and counted."""
        self._taken = 0

    def results(self, most: int) -> list[Result]:
        """Of the plans that were sent and not run yet."""
        plans = [m for _, m in self.scheduler.fleet.sent if isinstance(m, Plan)][self._taken :]
        self._taken += len(plans[:most])
        return [self.engine.step(plan) for plan in plans[:most]]

    def put(self, result: Result, *, wrong: bool = False, peer: bytes = b"a") -> None:
        """Let one frame arrive."""
        self.wrong += wrong
        self.scheduler.fleet.put(peer, result)
        self.scheduler.turn()

    def do(self, action: str) -> None:
        """One thing that a network, or a worker that was away, may do."""
        if action == "run" or not self.told:
            for result in self.results(1):
                self.told.append(result)
                self.put(result)
        elif action == "swap":
            for late, result in enumerate(reversed(self.results(2))):
                self.told.append(result)
                self.put(result, wrong=late > 0)
        elif action == "replay":
            self.put(self.told[-1], wrong=True)
        elif action == "stale":
            self.put(structs.replace(self.told[-1], epoch=7), wrong=True)
        else:
            self.put(self.told[-1], wrong=True, peer=b"stranger")

    def counted(self) -> int:
        """What the scheduler has dropped."""
        return self.scheduler.service.state.counters.stale_results + self.scheduler.fleet.dropped

    def log(self) -> list[int]:
        """What the gateway was sent, without a gap or a repeat."""
        log: list[int] = []
        for _, message in self.scheduler.frontend.sent:
            if isinstance(message, Tokens) and message.tokens:
                assert unpack(message.first, "I").tolist() == [len(log)]
                log += unpack(message.tokens).tolist()
        return log


@given(st.lists(st.sampled_from(["run", "swap", "replay", "stale", "stranger"]), max_size=40))
@settings(max_examples=100, deadline=None)
def test_what_comes_twice_late_or_from_nobody_is_dropped_and_counted(actions: list[str]) -> None:
    line = Line()
    for action in actions:
        line.do(action)
        assert line.counted() == line.wrong
    while line.scheduler.service.state.num_running:
        line.do("run")
    assert line.counted() == line.wrong
    assert line.log() == expected_tokens([1, 2, 3], Sampling(max_tokens=8), INFO.vocab_size)[0]


@pytest.fixture(scope="module")
def vocab(stories: Path) -> TokenizerVocabulary:
    return load(stories)


@given(frames=st.lists(st.tuples(PEERS, requests(TOKENIZE)), max_size=8))
@settings(max_examples=100, deadline=None)
def test_the_tokenizer_takes_anything(
    vocab: TokenizerVocabulary, frames: list[tuple[bytes, Any]]
) -> None:
    inbox = Inbox()
    hello = Hello("tokenizer", "t", incarnation(), __version__, tokenizer=TokenizerInfo("m", 300))
    handler = RequestHandler(vocab, 100, "m")
    tokenizer = Tokenizer(handler, TokenizerConfig().max_decode_states)
    loop = RpcServer(tokenizer, hello, cast(Server, inbox), 1024)
    for number, (peer, message) in enumerate(frames):
        inbox.put(peer, message)
        loop.turn(number * 0.01)
    tokenizer.close()


@given(frames=st.lists(st.tuples(PEERS, requests(MEDIA)), max_size=8))
@settings(max_examples=100, deadline=None)
def test_the_media_preprocessor_takes_anything(frames: list[tuple[bytes, Any]]) -> None:
    inbox = Inbox()
    hello = Hello("mm-preprocess", "p", incarnation(), __version__, media=MediaInfo("m"))
    model, config = Model("m", "LlamaForCausalLM"), MediaConfig()
    loop = RpcServer(Preprocessor(model, config), hello, cast(Server, inbox), 256)
    for number, (peer, message) in enumerate(frames):
        inbox.put(peer, message)
        loop.turn(number * 0.01)
