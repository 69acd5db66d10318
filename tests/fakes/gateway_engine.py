"""The whole gateway without a socket: its real engine over scripted servers in the same process.

A token is a byte of UTF-8, so ids, text and log-probabilities can be read off by eye. The same
scripts stand behind real sockets in `tests/gateway/test_engine.py`.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from baton.net.discovery import StaticDirectory
from baton.net.handshake import incarnation
from baton.net.sockets import Received
from baton.net.topology import FRONTEND, MEDIA, TOKENIZE, Link
from baton.protocol import (
    DEFAULT_VERSION,
    Abort,
    Action,
    AdapterInfo,
    AdminCommand,
    AdminReply,
    Beat,
    CacheReset,
    Decode,
    DecodedText,
    DecodeOpen,
    Detokenize,
    Detokenized,
    EncodeChat,
    Encoded,
    EncodeText,
    Envelope,
    Failed,
    FinishWeightUpdate,
    Hello,
    HelloRequest,
    InitWeightTransfer,
    LoadAdapter,
    Logprobs,
    MediaInfo,
    Message,
    ModelStats,
    Pause,
    PhaseTimes,
    Prepare,
    PromptLogprobs,
    QueueEstimate,
    RequestError,
    ResetCache,
    Resume,
    Sleep,
    StartProfile,
    StartWeightUpdate,
    Stats,
    StopProfile,
    Submit,
    TokenizerInfo,
    Tokens,
    UnloadAdapter,
    UpdateWeights,
    Vocabulary,
    VocabularyBytes,
    WakeUp,
    WorkerStats,
)
from baton.protocol.token_columns import pack, unpack
from baton_gateway.config import Config
from baton_gateway.engine import Engine

MODEL = "tiny"
BOS, EOS, MEDIA_PAD = 256, 257, 258
VOCAB = 260
MAX_LENGTH = 512


def text_of(ids: list[int], skip_special: bool = True) -> str:
    """Bytes as UTF-8; specials by name, if at all."""
    names = {} if skip_special else {BOS: b"<s>", EOS: b"</s>"}
    raw = b"".join(bytes([i]) if i < 256 else names.get(i, b"") for i in ids)
    return raw.decode("utf-8", "replace")


class FakeServer:
    """What both scripted servers do about the handshake."""

    service = ""

    def __init__(self) -> None:
        self.incarnation = incarnation()
        self.seen: list[Message] = []
        self.traces: list[str] = []
        self.deadlines: list[int] = []
        self.silent = False
        """Answers nothing at all, as if stopped."""
        self.known = False
        self.push: Callable[[Message], None] = lambda message: None

    def hello(self) -> Hello:
        return Hello(self.service, f"{self.service}-1", self.incarnation, "0")

    def restart(self) -> None:
        """Forget everything, as a new process would."""
        self.incarnation = incarnation()
        self.known = False

    def handle(self, message: Message, envelope: Envelope) -> None:
        """Take one message; answers go through `push`."""
        if self.silent:
            return
        if isinstance(message, Hello):
            self.known = True
            self.push(self.hello())
            self.greeted()
        elif isinstance(message, Beat):
            self.push(Beat(self.service, 1) if self.known else HelloRequest(self.incarnation))
        else:
            self.seen.append(message)
            self.traces.append(envelope.trace)
            self.deadlines.append(envelope.deadline_ms)
            self.serve(message)

    def greeted(self) -> None:
        """A client has said Hello."""

    def serve(self, message: Message) -> None:
        raise NotImplementedError


@dataclass
class _State:
    opening: DecodeOpen
    log: list[int]
    shown: int = 0


class FakeTokenizer(FakeServer):
    """Bytes as tokens, real incremental decoding by full recomputation."""

    service = "tokenizer"

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[int, _State] = {}
        self.forget_next = False
        """Answer the next Decode as if its states were unknown."""
        self.refuse: RequestError | None = None
        self.tool_call_parser = self.reasoning_parser = "none"
        self.sampling_defaults: dict[str, int | float] = {}
        self.tail = ""
        """End of every rendered conversation."""

    def hello(self) -> Hello:
        info = TokenizerInfo(
            MODEL, VOCAB, eos_ids=(EOS,), bos_id=BOS, has_chat_template=True,
            special_ids=(BOS, EOS, MEDIA_PAD), media_ids=(MEDIA_PAD,),
            tool_call_parser=self.tool_call_parser, reasoning_parser=self.reasoning_parser,
            sampling_defaults=self.sampling_defaults,
        )  # fmt: skip
        return Hello("tokenizer", "tokenizer-1", self.incarnation, "0", tokenizer=info)

    def restart(self) -> None:
        super().restart()
        self.states = {}

    def serve(self, message: Message) -> None:
        if isinstance(message, Decode):
            self.push(self._decode(message))
        elif self.refuse is not None and isinstance(message, EncodeChat):
            self.push(RequestError(message.id, self.refuse.code, self.refuse.message, status=400))
        elif isinstance(message, EncodeText):
            special = [BOS] if message.add_special and message.text else []
            self.push(self._encoded(message.id, special, message.text, message.limit))
        elif isinstance(message, EncodeChat):
            rendered = "".join(_flat(m) for m in json.loads(message.messages))
            encoded = self._encoded(message.id, [BOS], rendered, message.limit)
            self.push(msgspec.structs.replace(encoded, tail=self.tail))
        elif isinstance(message, Detokenize):
            ids = list(unpack(message.tokens))
            self.push(Detokenized(message.id, text_of(ids, message.skip_special)))
        elif isinstance(message, Vocabulary):
            pieces = (*(bytes([i]) for i in range(256)), b"<s>", b"</s>", b"<pad>", b"")
            self.push(VocabularyBytes(message.id, pieces))

    def _encoded(self, id: int, special: list[int], text: str, limit: int) -> Encoded:
        # As much as could matter is read: one more than the limit.
        ids = special + list(text[: limit + 1].encode())[: limit + 1]
        return Encoded(id, pack(ids), truncated=len(ids) > limit)

    def _decode(self, message: Decode) -> DecodedText:
        for opening in message.open:
            self.states[opening.handle] = _State(opening, list(unpack(opening.log)))
            state = self.states[opening.handle]
            state.shown = len(_final(state.opening, state.log, last=False)[0])
        if self.forget_next:
            self.forget_next = False
            self.states = {}
        for handle in unpack(message.close, "I"):
            self.states.pop(handle, None)
        return self._text(message)

    def _text(self, message: Decode) -> DecodedText:
        handles, nexts, texts, unknown, ends = [], [], [], [], []
        stopped: dict[int, str] = {}
        tokens, at = unpack(message.tokens), 0
        columns = zip(
            unpack(message.handles, "I"), unpack(message.first, "I"),
            unpack(message.counts, "B"), unpack(message.last, "B"), strict=True,
        )  # fmt: skip
        for handle, first, count, last in columns:
            row, at = list(tokens[at : at + count]), at + count
            state = self.states.get(handle)
            if state is None or first != len(state.log):
                unknown.append(handle)
                continue
            before = state.shown
            state.log += row
            final, stop = _final(state.opening, state.log, last=bool(last))
            handles.append(handle)
            nexts.append(len(state.log))
            texts.append(final[before:])
            state.shown = len(final)
            ends.append((len(final),) * count)
            if stop is not None:
                stopped[handle] = stop
        return DecodedText(
            pack(handles, "I"), pack(nexts, "I"), tuple(texts), stopped, pack(unknown, "I"),
            tuple(ends),
        )  # fmt: skip


def _flat(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(p["text"] for p in content)


def _final(opening: DecodeOpen, log: list[int], *, last: bool) -> tuple[str, str | None]:
    """Text of a log that can never change again, and the stop string that ended it."""
    text = text_of(log, opening.skip_special)
    if not last:
        text = text.removesuffix("\ufffd")
    for stop in opening.stops:
        if stop in text:
            at = text.index(stop)
            return text[: at + len(stop) * opening.include_stop], stop
    held = max((_overlap(text, stop) for stop in opening.stops), default=0)
    return text if last or not held else text[:-held], None


def _overlap(text: str, stop: str) -> int:
    return next((n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), 0)


class FakePreprocessor(FakeServer):
    """The media preprocessor of a text-only model."""

    service = "mm-preprocess"

    def hello(self) -> Hello:
        return Hello(
            self.service, f"{self.service}-1", self.incarnation, "0", media=MediaInfo(MODEL)
        )

    def serve(self, message: Message) -> None:
        assert isinstance(message, Prepare)
        item = message.items[0]
        said = f"The model {MODEL} does not take {item.modality} input. It takes text only."
        self.push(RequestError(message.id, "unsupported_value", said, item.param))


@dataclass
class _Run:
    submit: Submit
    script: Iterator[int]
    done: int = 0
    first: bool = True


@dataclass
class FakeScheduler(FakeServer):
    """Says `reply` to everything: all sequences advance together, one token per step."""

    service = "scheduler"
    reply: str = "Hello from Baton."
    replies: list[str] = field(default_factory=list)
    """What is said before that, one to each new request."""
    max_length: int = MAX_LENGTH
    pace: float = 0.0
    """Seconds between steps."""
    hold: bool = False
    """Take work and never do it."""
    fail: Failed | None = None
    fail_after: int = 0
    """Tokens before `fail`."""
    workers: tuple[WorkerStats, ...] = ()
    cached: int = 0
    """Prompt tokens of every sequence that came from the prefix cache."""
    note: QueueEstimate | None = None
    """What is told of every sequence."""
    times: PhaseTimes | None = None
    """Where the time of every sequence is said to have gone."""
    live: dict[int, _Run] = field(default_factory=dict)
    aborted: list[int] = field(default_factory=list)
    submits: list[Submit] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    """What operators have asked of the workers."""
    adapters: dict[str, AdapterInfo] = field(default_factory=dict)
    paused: bool = False
    weight_version: str = DEFAULT_VERSION
    asleep: bool = False
    refusal: str = ""
    """Why workers do nothing of that."""
    report: bool = True

    def __post_init__(self) -> None:
        super().__init__()
        self.workers = (worker(),)
        self._stepping: asyncio.Task[None] | None = None
        self._steps = 0

    def restart(self) -> None:
        super().restart()
        self.live.clear()

    def stats(self) -> Stats:
        return Stats(
            self.incarnation,
            waiting=0, waiting_tokens=0, running=len(self.live), preemptions=3, finished=0,
            tokens=self._steps, tokens_per_second=12.5, uptime=1.0,
            workers=self.workers, prefix_queries=40, prefix_hits=30,
            num_drafts=5, num_draft_tokens=20, num_accepted_tokens_per_pos=(4, 2),
            models=(self.model(),) if self.workers else (),
        )  # fmt: skip

    def model(self) -> ModelStats:
        adapters = tuple(self.adapters.values())
        return ModelStats(
            MODEL,
            self.max_length,
            VOCAB,
            (EOS,),
            adapters=adapters,
            paused=self.paused,
            asleep=self.asleep,
            weight_version=self.weight_version,
        )

    def administer(self, command: AdminCommand) -> AdminReply:
        """Do as told, or refuse."""
        self.actions.append(command.action)
        if self.refusal:
            return AdminReply(command.id, 400, self.refusal)
        if isinstance(command.action, LoadAdapter):
            info = AdapterInfo(command.action.name, command.action.path.encode()[:16])
            self.adapters[info.name] = info
            return AdminReply(command.id, digest=info.digest)
        if isinstance(command.action, StartProfile | StopProfile):
            return AdminReply(command.id)
        if isinstance(command.action, Sleep | WakeUp):
            self.asleep = isinstance(command.action, Sleep)
            return AdminReply(command.id)
        if isinstance(command.action, Pause | Resume):
            self.paused = isinstance(command.action, Pause)
            return AdminReply(command.id)
        if isinstance(
            command.action,
            InitWeightTransfer | StartWeightUpdate | UpdateWeights | FinishWeightUpdate,
        ):
            self.weight_version = getattr(command.action, "label", "") or self.weight_version
            return AdminReply(command.id)
        assert isinstance(command.action, UnloadAdapter)
        del self.adapters[command.action.name]
        return AdminReply(command.id)

    def greeted(self) -> None:
        self.push(self.stats())

    def handle(self, message: Message, envelope: Envelope) -> None:
        super().handle(message, envelope)
        if isinstance(message, Beat) and self.known and self.report and not self.silent:
            self.push(self.stats())

    def serve(self, message: Message) -> None:
        if isinstance(message, AdminCommand):
            self.push(self.administer(message))
            self.push(self.stats())
        elif isinstance(message, Submit):
            self.submits.append(message)
            first = bool(self.replies) and not message.log
            reply = self.replies.pop(0) if first else self.reply
            script = iter([*reply.encode(), EOS][len(message.log) // 4 :])
            self.live[message.handle] = _Run(message, script, len(message.log) // 4)
            if not self.hold and (self._stepping is None or self._stepping.done()):
                self._stepping = asyncio.get_running_loop().create_task(self._run())
        elif isinstance(message, Abort):
            for handle in unpack(message.handles, "I"):
                self.aborted.append(handle)
                if self.live.pop(handle, None) is not None and self.times is not None:
                    self.push(Tokens(b"", b"", b"", b"", phase_times={handle: self.times}))

        elif isinstance(message, ResetCache):
            self.push(CacheReset(message.id, 7))

    async def _run(self) -> None:
        while self.live:
            await asyncio.sleep(self.pace)
            if self.live and not self.hold and not self.silent:
                self.step()

    def step(self) -> None:
        """One token for every live sequence."""
        self._steps += 1
        failing = [h for h, run in self.live.items() if self.fail and run.done >= self.fail_after]
        for handle in failing:
            assert self.fail is not None
            del self.live[handle]
            self.push(msgspec.structs.replace(self.fail, handle=handle, phase_times=self.times))
        handles, first, tokens, finished, new = [], [], [], {}, []
        entries: list[tuple[int, int]] = []
        prompts: list[PromptLogprobs] = []
        for handle, run in list(self.live.items()):
            sampling = run.submit.sampling
            token = next(run.script, EOS)
            if token == EOS and EOS not in sampling.stop_ids:
                token = 33
            handles.append(handle)
            first.append(run.done)
            if sampling.logprobs >= 0:
                entries.append((len(tokens), sampling.logprobs))
            if run.first and sampling.prompt_logprobs >= 0:
                prompts.append(_prompt(handle, run.submit, sampling.prompt_logprobs))
            tokens.append(token)
            new += [handle] if run.first else []
            run.done += 1
            run.first = False
            reason = "stop" if token in sampling.stop_ids else None
            if reason is None and run.done >= sampling.max_tokens:
                reason = "length"
            if reason is not None:
                finished[handle] = reason
                del self.live[handle]
        if handles:
            self.push(
                Tokens(
                    pack(handles, "I"),
                    pack(first, "I"),
                    pack([1] * len(handles), "B"),
                    pack(tokens),
                    finished,
                    columns(entries, tokens),
                    tuple(prompts),
                    dict.fromkeys(new, self.cached) if self.cached else {},
                    estimates=dict.fromkeys(new, self.note) if self.note else {},
                    phase_times=dict.fromkeys(finished, self.times) if self.times else {},
                )
            )


def worker(state: str = "ready", running: int = 0, steps: int = 1) -> WorkerStats:
    """A worker's report."""
    return WorkerStats(
        "worker-1", "both", state, "cpu", "float32", running, 100, 90, steps, 2.0, 12.5, 1000, 500,
        model=MODEL,
    )  # fmt: skip


def columns(entries: list[tuple[int, int]], tokens: list[int]) -> Logprobs | None:
    """Log-probabilities: token t has -(t + 1) / 100; the alternatives are 'a', 'b', 'c', ..."""
    if not entries:
        return None
    tops = [(97 + i, math.log(0.5) - i) for _, count in entries for i in range(count)]
    return Logprobs(
        rows=pack([row for row, _ in entries], "I"),
        chosen=pack([-(tokens[row] + 1) / 100 for row, _ in entries], "f"),
        ranks=pack([7] * len(entries), "I"),
        counts=pack([count for _, count in entries], "B"),
        top_ids=pack([token for token, _ in tops]),
        top_values=pack([value for _, value in tops], "f"),
    )


def _prompt(handle: int, submit: Submit, count: int) -> PromptLogprobs:
    ids = list(unpack(submit.tokens))
    found = columns([(i, count) for i in range(len(ids) - 1)], ids[1:])
    empty = Logprobs(b"", b"", b"", b"", b"", b"")
    return PromptLogprobs(handle, 1, found or empty)


class FakeChannel:
    """A socket whose other end is a scripted server."""

    def __init__(self, server: FakeServer | None) -> None:
        self._server = server
        self.breaking = False
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        if server is not None:
            server.push = self._inbox.put_nowait

    async def post(self, message: Message, envelope: Envelope | None = None) -> bool:
        if self._server is None:
            return False
        self._server.handle(message, envelope or Envelope())
        return True

    async def receive(self) -> Received:
        return Received(b"", Envelope(), await self._inbox.get())

    def broke(self) -> bool:
        broken, self.breaking = self.breaking, False
        return broken

    def close(self) -> None:
        """Nothing to close."""


class FakeEngine(Engine):
    """The real engine with a scripted tokenizer and a scripted scheduler."""

    def __init__(self, config: Config) -> None:
        self.tokenizer = FakeTokenizer()
        self.scheduler = FakeScheduler()
        self.preprocessor = FakePreprocessor()
        super().__init__(config, StaticDirectory(config), self._connect)

    def _connect(self, link: Link, address: str, identity: bytes) -> FakeChannel:
        servers: dict[Link, FakeServer] = {
            TOKENIZE: self.tokenizer,
            FRONTEND: self.scheduler,
            MEDIA: self.preprocessor,
        }
        return FakeChannel(servers.get(link))


__all__ = ["EOS", "MAX_LENGTH", "MODEL", "FakeEngine", "FakeScheduler", "FakeTokenizer", "worker"]
