"""Well-formed nonsense against every service that binds a socket: no crash, no effect on others.

Frames that are not even messages never get this far: tests/shared/test_wire.py.
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
from baton.peers import incarnation
from baton.protocol import Hello, MediaInfo, Result, Sampling, Submit, TokenizerInfo, WorkerInfo
from baton.tokens import pack
from baton.topology import FLEET, FRONTEND, MEDIA, TOKENIZE
from baton.transport import Server
from baton_mm_preprocess.modalities import Model
from baton_mm_preprocess.service import Preprocessor
from baton_scheduler.config import Config as SchedulerConfig
from baton_scheduler.service import Service
from baton_tokenizer.config import Config as TokenizerConfig
from baton_tokenizer.load import load
from baton_tokenizer.service import Desk, Tokenizer
from baton_tokenizer.vocab import Vocab
from tests.fakes.frames import Inbox, of_struct, requests

PEERS = st.sampled_from([b"a", b"b", b"stranger"])
INFO = WorkerInfo("m", num_pages=32, page_size=4, max_rows=4, max_batch_tokens=16, max_length=64,
                  vocab_size=300)  # fmt: skip


class Scheduler:
    """The scheduler's service without its sockets, with one gateway and one worker."""

    def __init__(self) -> None:
        self.now = 0.0
        self.frontend, self.fleet = Inbox(), Inbox()
        self.service = Service(
            SchedulerConfig(), cast(Server, self.frontend), cast(Server, self.fleet), self.clock
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
            step = worker.flights[0].step
            scheduler.fleet.put(b"a", structs.replace(answer, epoch=1, step=step))
        scheduler.turn()


@given(frames=FRAMES)
@settings(max_examples=100, deadline=None)
def test_a_stranger_has_no_effect_on_the_scheduler(frames: list[tuple[str, bytes, Any]]) -> None:
    scheduler = Scheduler()
    state = scheduler.service.state
    before, running = replace(state.counters), state.num_running
    for link, _, message in frames:
        if not isinstance(message, Hello):
            getattr(scheduler, link).put(b"stranger", message)
            scheduler.turn()
    assert state.counters == before
    assert state.num_running == running == 1


@pytest.fixture(scope="module")
def vocab(stories: Path) -> Vocab:
    return load(stories)


@given(frames=st.lists(st.tuples(PEERS, requests(TOKENIZE)), max_size=8))
@settings(max_examples=100, deadline=None)
def test_the_tokenizer_takes_anything(vocab: Vocab, frames: list[tuple[bytes, Any]]) -> None:
    inbox = Inbox()
    hello = Hello("tokenizer", "t", incarnation(), __version__, tokenizer=TokenizerInfo("m", 300))
    desk = Desk(vocab, 100)
    tokenizer = Tokenizer(desk, hello, TokenizerConfig(), cast(Server, inbox))
    for number, (peer, message) in enumerate(frames):
        inbox.put(peer, message)
        tokenizer.turn(number * 0.01)
    tokenizer.close()


@given(frames=st.lists(st.tuples(PEERS, requests(MEDIA)), max_size=8))
@settings(max_examples=100, deadline=None)
def test_the_media_preprocessor_takes_anything(frames: list[tuple[bytes, Any]]) -> None:
    inbox = Inbox()
    hello = Hello("mm-preprocess", "p", incarnation(), __version__, media=MediaInfo("m"))
    preprocessor = Preprocessor(Model("m", "LlamaForCausalLM"), hello, cast(Server, inbox))
    for number, (peer, message) in enumerate(frames):
        inbox.put(peer, message)
        preprocessor.turn(number * 0.01)
