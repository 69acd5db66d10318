"""The whole system in one process, without a socket: the gateway's application over the real
tokenizer, the real media preparation, the real scheduler state and the real worker engine.

So a checkpoint is proven through its endpoint in a second.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from baton.net.discovery import StaticDirectory
from baton.net.topology import (
    FRONTEND,
    MEDIA,
    TOKENIZE,
    Link,
)
from baton.process.rpc_server import attempt
from baton.protocol import (
    Abort,
    Decode,
    DecodedText,
    Detokenize,
    EncodeChat,
    EncodePair,
    EncodeText,
    Envelope,
    Hello,
    MediaInfo,
    MediaItem,
    Message,
    Prepare,
    PrepareSpeech,
    Stats,
    Submit,
    TokenizerInfo,
    Vocabulary,
    WorkerInfo,
)
from baton_gateway.app import create_app
from baton_gateway.config import Config
from baton_gateway.engine import Engine
from baton_mm_preprocess.config import Config as MediaConfig
from baton_mm_preprocess.model_info import read_model
from baton_mm_preprocess.sandbox import process
from baton_mm_preprocess.sandbox.process import Outcome
from baton_mm_preprocess.service import prepare, prepare_speech, setup_of
from baton_scheduler.events import (
    Aborted,
    Arrived,
    Clock,
    Decision,
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
from baton_tokenizer.decode_states import DecodeStates
from baton_tokenizer.service import RequestHandler
from baton_tokenizer.vocabulary.load import load
from baton_worker.config import Config as WorkerConfig
from baton_worker.engine.engine import Engine as WorkerEngine
from tests.fakes.gateway_app import Site
from tests.fakes.gateway_engine import FakeChannel, FakeServer

GATEWAY, WORKER, EPOCH = "gateway", "worker", 1


class RealTokenizer(FakeServer):
    """The desk of the real tokenizer."""

    service = "tokenizer"

    def __init__(self, path: Path) -> None:
        super().__init__()
        vocab = load(path)
        self._info: TokenizerInfo = vocab.info(path.name)
        self._desk = RequestHandler(vocab, 4096, path.name)
        self._sequences = DecodeStates(self._desk.alphabet, 256)

    def hello(self) -> Hello:
        return Hello("tokenizer", "tokenizer-1", self.incarnation, "0", tokenizer=self._info)

    def serve(self, message: Message) -> None:
        answer: Message | DecodedText
        if isinstance(message, Decode):
            answer = self._sequences.decode(b"gateway", message)
        else:
            assert isinstance(
                message, EncodeChat | EncodePair | EncodeText | Detokenize | Vocabulary
            )
            found, envelope = message, Envelope()
            answer = attempt("tokenizer", found, lambda: self._desk.answer(found, envelope))
        self.push(answer)


class RealPreprocessor(FakeServer):
    """The real preparation, without the processes around it."""

    service = "mm-preprocess"

    def __init__(self, path: Path, config: MediaConfig) -> None:
        super().__init__()
        self._model = read_model(path, path.name, config.kwargs)
        self._config = config

    def hello(self) -> Hello:
        info = MediaInfo(self._model.name, self._model.modalities)
        return Hello(self.service, "mm-preprocess-1", self.incarnation, "0", media=info)

    def serve(self, message: Message) -> None:
        if isinstance(message, PrepareSpeech):
            self.push(self._speech(message))
            return
        assert isinstance(message, Prepare)
        images = sum(item.modality == "image" for item in message.items)
        outcomes = map(partial(self._look, images), message.items)
        self.push(attempt(self.service, message, lambda: prepare(self._model, message, outcomes)))

    def _speech(self, message: PrepareSpeech) -> Message:
        def look(item: MediaItem) -> Outcome:
            source = process.Source(item.url, item.modality, first_chunk=message.first)
            return process.prepare(source, setup_of(self._model, self._config))

        return attempt(self.service, message, lambda: prepare_speech(self._model, message, look))

    def _look(self, images: int, item: MediaItem) -> Outcome:
        sound = self._model.wants_sound(item)
        source = process.Source(item.url, item.modality, images, sound=sound)
        return process.prepare(source, setup_of(self._model, self._config))


class RealScheduler(FakeServer):
    """The state machine, with the real worker called in place of each dispatch."""

    service = "scheduler"

    def __init__(self, worker: WorkerEngine, name: str, limits: SchedulerOptions) -> None:
        super().__init__()
        self.worker = worker
        self._name, self._limits = name, limits
        self.state = State(limits)
        self.plans: list[Dispatch] = []
        self.hold = False
        """Take work and never run it."""
        self._apply(WorkerJoined(WORKER, EPOCH, info_of(worker, name)))
        self._stepping: asyncio.Task[None] | None = None

    def restart(self) -> None:
        """A new process: it knows neither its gateway nor what ran."""
        super().restart()
        self.plans.clear()
        self.worker.reset()
        self.state = State(self._limits)
        self._apply(WorkerJoined(WORKER, EPOCH, info_of(self.worker, self._name)))

    def stats(self) -> Stats:
        return stats(self.state, incarnation=self.incarnation, uptime=1.0, dropped_frames=0)

    def greeted(self) -> None:
        self.push(self.stats())

    def handle(self, message: Message, envelope: Envelope) -> None:
        super().handle(message, envelope)
        if not isinstance(message, (Hello, Submit, Abort)):
            self.push(self.stats())

    def serve(self, message: Message) -> None:
        self._apply(Clock(time.monotonic()))
        if isinstance(message, Submit):
            self._apply(Arrived(GATEWAY, message))
        elif isinstance(message, Abort):
            self._apply(Aborted(GATEWAY, message.handles))
        self.go_on()

    def go_on(self) -> None:
        """Run what is there, unless it is held."""
        if not self.hold and (self._stepping is None or self._stepping.done()):
            self._stepping = asyncio.get_running_loop().create_task(self._run())

    def advance(self) -> None:
        """Time passes: plans are made."""
        self._apply(Tick(time.monotonic()))

    def _apply(self, event: Event) -> None:
        self._do(self.state.apply(event))

    def _do(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Reply):
                self.push(decision.message)
            elif isinstance(decision, Dispatch):
                self.plans.append(decision)

    async def _run(self) -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)
            self.advance()
            if not self.plans:
                break
            plan = self.plans.pop(0).message
            for turn in range(plan.num_steps):
                result = self.worker.step(plan, turn)
                self._apply(Clock(time.monotonic()))
                self._apply(Settled(WORKER, result))


def info_of(worker: WorkerEngine, name: str) -> WorkerInfo:
    """What the worker says of itself."""
    resolved = worker.resolved
    drafts = resolved.speculative
    return WorkerInfo(
        name,
        resolved.num_pages,
        resolved.page_size,
        resolved.max_num_seqs,
        resolved.max_num_batched_tokens,
        resolved.max_model_len,
        resolved.vocab_size,
        eos_ids=resolved.eos_ids,
        pooling=resolved.pooling,
        windows=resolved.groups.windows,
        alignment=resolved.alignment,
        num_speculative_tokens=drafts.num_speculative_tokens if drafts else 0,
        adapters=worker.adapters.infos if worker.adapters else (),
        max_loras=worker.max_loras,
        max_cpu_loras=worker.adapters.capacity if worker.adapters else 0,
    )


class WholeEngine(Engine):
    """The gateway's engine, connected to both."""

    def __init__(
        self,
        config: Config,
        path: Path,
        worker: WorkerEngine,
        limits: SchedulerOptions,
        media: MediaConfig,
    ) -> None:
        self.tokenizer = RealTokenizer(path)
        self.preprocessor = RealPreprocessor(path, media)
        self.scheduler = RealScheduler(worker, path.name, limits)
        super().__init__(config, StaticDirectory(config), self._connect)

    def _connect(self, link: Link, address: str, identity: bytes) -> FakeChannel:
        servers: dict[Link, FakeServer] = {
            TOKENIZE: self.tokenizer,
            FRONTEND: self.scheduler,
            MEDIA: self.preprocessor,
        }
        return FakeChannel(servers.get(link))


class Whole(Site):
    """Synchronous access to the whole system over one checkpoint."""

    def __init__(
        self,
        path: Path,
        *,
        worker: dict[str, Any] | None = None,
        scheduler: SchedulerOptions | None = None,
        media: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        given = {"device": "cpu", "dtype": "float32", "threads": 1, "max_num_seqs": 32}
        config = WorkerConfig(model=str(path), **given | (worker or {}))
        self._folder = tempfile.TemporaryDirectory(prefix="baton-")
        own = {name: Path(self._folder.name) / name for name in ("store_path", "journal_path")}
        self.config = Config(service_wait_seconds=1.0, **own | settings)
        self.model = path.name
        self.worker = WorkerEngine.build(config)
        limits = scheduler or SchedulerOptions()
        own_media = MediaConfig(**media or {})
        self.engine = WholeEngine(self.config, path, self.worker, limits, own_media)  # type: ignore[assignment]
        self.app = create_app(self.config, self.engine)
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()

    def complete(self, **fields: Any) -> httpx.Response:
        """POST /v1/completions."""
        body = {"model": self.model, "max_tokens": 8, "temperature": 0} | fields
        return self.post("/v1/completions", body)

    def together(self, asked: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        """Answers to requests of one sequence each that are all queued before one of them runs."""
        answers: list[Any] = self.run(lambda: self._together(asked))
        return answers

    async def _together(self, asked: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        scheduler = self.engine.scheduler
        assert isinstance(scheduler, RealScheduler)
        scheduler.hold = True
        tasks = [asyncio.create_task(one) for one in asked]
        while len(scheduler.state.queue) < len(tasks):
            assert not any(task.done() for task in tasks), "an answer without a step"
            await asyncio.sleep(0.005)
        scheduler.hold = False
        scheduler.go_on()
        return await asyncio.gather(*tasks)

    def embed(self, given: Any, **fields: Any) -> Any:
        """POST /v1/embeddings."""
        return self.post("/v1/embeddings", {"model": self.model, "input": given} | fields)


@contextmanager
def whole(path: Path, **settings: Any) -> Iterator[Whole]:
    """An open `Whole`."""
    here = Whole(path, **settings)
    here.open()
    try:
        yield here
    finally:
        here.close()
