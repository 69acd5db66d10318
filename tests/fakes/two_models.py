"""A gateway before one scheduler, with a worker and a tokenizer of each of two models."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from baton.net.discovery import StaticDirectory
from baton.net.topology import FRONTEND, Link
from baton.protocol import (
    Abort,
    EncodeChat,
    EncodeText,
    Envelope,
    Hello,
    Message,
    RequestError,
    Stats,
    Submit,
)
from baton_gateway.app import create_app
from baton_gateway.config import Config
from baton_gateway.engine import Engine
from baton_scheduler.events import (
    Aborted,
    Arrived,
    Dispatch,
    Event,
    Reply,
    Settled,
    Tick,
    WorkerJoined,
)
from baton_scheduler.observability.stats import stats
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.state import State
from tests.fakes.gateway_app import Site
from tests.fakes.gateway_engine import VOCAB, FakeChannel, FakeServer, FakeTokenizer
from tests.fakes.hash_worker import FakeEngine as FakeWorkerEngine
from tests.fakes.hash_worker import worker_info

QUIET, LOUD = "quiet", "loud"
"""Names of the models. The tokenizer of `LOUD` encodes capital letters only."""
SIZES = {QUIET: VOCAB, LOUD: 100}
LENGTHS = {QUIET: 512, LOUD: 200}


class ModelTokenizer(FakeTokenizer):
    """A tokenizer of one of them, which refuses what is meant for the other."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.model = model

    def hello(self) -> Hello:
        hello = super().hello()
        assert hello.tokenizer is not None
        info = msgspec.structs.replace(hello.tokenizer, model=self.model)
        return msgspec.structs.replace(hello, name=f"tokenizer-{self.model}", tokenizer=info)

    def serve(self, message: Message) -> None:
        if isinstance(message, EncodeText | EncodeChat) and message.model != self.model:
            self.push(RequestError(message.id, None, "another vocabulary", status=500))
        elif isinstance(message, EncodeText) and self.model == LOUD:
            super().serve(msgspec.structs.replace(message, text=message.text.upper()))
        else:
            super().serve(message)


class TwoModelScheduler(FakeServer):
    """The state machine with two fake workers, which run each plan as soon as it is made."""

    service = "scheduler"

    def __init__(self) -> None:
        super().__init__()
        self.state = State(SchedulerOptions())
        self.workers: dict[str, FakeWorkerEngine] = {}
        self.now = 0.0
        for epoch, model in enumerate((QUIET, LOUD), start=1):
            size, length = SIZES[model], LENGTHS[model]
            info = worker_info(model=model, vocab_size=size, max_model_len=length)
            self.workers[model] = FakeWorkerEngine(info)
            self._apply(WorkerJoined(model, epoch, info))

    def stats(self) -> Stats:
        return stats(self.state, incarnation=self.incarnation, uptime=1.0, dropped_frames=0)

    def greeted(self) -> None:
        self.push(self.stats())

    def handle(self, message: Message, envelope: Envelope) -> None:
        super().handle(message, envelope)
        if self.known:
            self.push(self.stats())

    def serve(self, message: Message) -> None:
        if isinstance(message, Submit):
            self._apply(Arrived("gateway", message))
            asyncio.get_running_loop().call_soon(self._run)
        elif isinstance(message, Abort):
            self._apply(Aborted("gateway", message.handles))

    def _run(self) -> None:
        while not self.state.idle:
            self.now += 0.01
            self._apply(Tick(self.now))

    def _apply(self, event: Event) -> None:
        for decision in self.state.apply(event):
            if isinstance(decision, Reply):
                self.push(decision.message)
            elif isinstance(decision, Dispatch):
                plan = decision.message
                for turn in range(plan.num_steps):
                    result = self.workers[decision.worker].step(plan, turn)
                    self._apply(Settled(decision.worker, result))


class TwoModelEngine(Engine):
    """The gateway's engine, connected to all of them."""

    def __init__(self, config: Config) -> None:
        self.encoders = {name: ModelTokenizer(name) for name in (QUIET, LOUD)}
        self.scheduler = TwoModelScheduler()
        super().__init__(config, StaticDirectory(config), self._connect)

    def _connect(self, link: Link, address: str, identity: bytes) -> FakeChannel:
        return FakeChannel(self.scheduler if link is FRONTEND else self.encoders.get(address))


class TwoModelSite(Site):
    """The application before that engine."""

    engine: TwoModelEngine  # type: ignore[assignment]

    def __init__(self, **settings: object) -> None:
        super().__init__(tokenizer_address=f"{QUIET},{LOUD}", **settings)
        self.engine = TwoModelEngine(self.config)
        self.app = create_app(self.config, self.engine)


@contextmanager
def two_models(silent: str = "", **settings: object) -> Iterator[TwoModelSite]:
    """An open `TwoModelSite`; the tokenizer of the model `silent` does not answer."""
    here = TwoModelSite(**settings)
    if silent:
        here.engine.encoders[silent].silent = True
    here.open()
    try:
        yield here
    finally:
        here.close()
