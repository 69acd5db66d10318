"""A worker without a model: token i is a hash of (prompt, seed, i).

So loss, duplication, reordering and cross-wiring of tokens are provable: whoever knows a request
knows every token of its answer. The fake also checks what a scheduler promises: positions are
contiguous, steps have no gap, budgets hold, no page that a second live slot has is written, and a
sequence reads back exactly the keys of its own prefix, whoever computed them: all of them, or those
within the window of its next token.

    python -m tests.fakes.hash_worker --run-dir DIR [--step-ms 2]
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import product
from types import TracebackType
from typing import Self

import msgspec

from baton import __version__
from baton.kv.page_hashes import PageHashTable
from baton.net.discovery import StaticDirectory
from baton.net.handshake import ClientHandshake, incarnation, unique_identity
from baton.net.sockets import Client, wait
from baton.net.topology import FLEET
from baton.process.lifecycle import Heartbeat, process_id
from baton.protocol import (
    Hello,
    Message,
    NewSequence,
    PageHashes,
    Plan,
    Result,
    Sampling,
    SetRole,
    TruncatePlan,
    WorkerInfo,
)
from baton.protocol.token_columns import pack, unpack
from baton.protocol.vector_columns import join
from baton.settings import Settings
from baton_worker.engine.plan_queue import PlanQueue

VOCAB = 32_000


def worker_info(
    *,
    num_pages: int = 256,
    page_size: int = 16,
    max_num_seqs: int = 32,
    max_num_batched_tokens: int = 256,
    max_model_len: int = 2048,
    model: str = "fake",
    vocab_size: int = VOCAB,
    role: str = "both",
    pages_address: str = "",
    host_pages: int = 0,
    window: int = 0,
    windows: tuple[int, ...] = (),
    encoder_layout: str = "",
) -> WorkerInfo:
    """What a fake worker says of itself."""
    return WorkerInfo(
        model,
        num_pages,
        page_size,
        max_num_seqs,
        max_num_batched_tokens,
        max_model_len,
        vocab_size,
        role=role,
        kv_address=pages_address,
        host_pages=host_pages,
        window=window,
        windows=windows,
        encoder_layout=encoder_layout,
    )


def token(prompt: bytes, seed: int, index: int, vocab_size: int = VOCAB) -> int:
    """The token at `index` of the log that follows an int32 prompt column."""
    key = prompt + pack([seed & (2**64 - 1), index], "Q")
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little") % vocab_size


def vector(prompt: bytes) -> bytes:
    """The float32 numbers that a prompt column comes to, where a vector is wanted."""
    return pack(list(blake2b(prompt, digest_size=3).digest()), "f")


def expected_tokens(
    prompt: Sequence[int], sampling: Sampling, vocab_size: int = VOCAB
) -> tuple[list[int], str]:
    """The whole log of a sequence and its finish reason, if the context is long enough."""
    column, log = pack(prompt), []
    for index in range(sampling.max_tokens):
        log.append(token(column, sampling.seed, index, vocab_size))
        if _stops(log[-1], index, sampling):
            return log, "stop"
    return log, "length"


def _stops(value: int, index: int, sampling: Sampling) -> bool:
    return value in sampling.stop_ids and index >= sampling.min_tokens


@dataclass
class _Slot:
    new: NewSequence
    prompt: bytes
    tokens: list[int]
    """Prompt and log."""
    computed: int = 0
    pages: list[list[int]] = field(default_factory=list)
    """By group; 0 in the place of those that it never had."""
    dropped: list[int] = field(default_factory=list)
    """By group: so many of them, from the first on, are not its own, or not any more."""
    keys: list[bytes] = field(default_factory=list)
    """Per computed position what its page must hold: a hash of all tokens up to it."""
    done: bool = False

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def own(self) -> list[int]:
        """Pages that nobody else writes to."""
        groups = zip(self.pages, self.dropped, strict=True)
        return [page for pages, dropped in groups for page in pages[dropped:]]

    def key(self, position: int) -> bytes:
        """Extends the chain up to this position, which a token must have."""
        while len(self.keys) <= position:
            before = self.keys[-1] if self.keys else b""
            new = before + pack([self.tokens[len(self.keys)]])
            self.keys.append(blake2b(new, digest_size=8).digest())
        return self.keys[position]


def _by_group(rows: bytes, groups: bytes, counts: bytes) -> list[tuple[int, int, int]]:
    """(slot, group, count) of the page or drop columns of a plan."""
    slots = unpack(rows, "I")
    return list(zip(slots, groups or bytes(len(slots)), unpack(counts, "I"), strict=True))


class FakeEngine:
    """Runs plans. A plan that breaks a promise raises `AssertionError`."""

    def __init__(self, info: WorkerInfo, *, fail_on: int | None = None) -> None:
        self.info = info
        self.windows = info.windows or (info.window,)
        self.fail_on = fail_on
        """A sequence whose prompt begins with this token fails at its first step."""
        self.withhold = False
        """Forget the vectors of whatever runs."""
        self.swap_us = 0
        """What it says of every step that swaps."""
        self.duration_us = 1
        """What it says of every step."""
        self.slots: dict[int, _Slot] = {}
        self.cache: dict[int, list[bytes]] = {}
        """Per page that was ever written, what each of its positions holds."""
        self.host: dict[int, list[bytes]] = {}
        """The same of pages in host memory."""
        self.last_step: int | None = None
        self._owners: Counter[int] = Counter()
        """Per page, how many live slots have it."""

    def step(self, plan: Plan, turn: int = 0) -> Result:
        """Release, enter, append pages, run; of later turns of a plan, run alone."""
        step = plan.step + turn
        assert self.last_step is None or step == self.last_step + 1, "a plan is missing"
        self.last_step = step
        if turn:
            return self._run(plan, turn)
        for slot in unpack(plan.release, "I"):
            del self.slots[slot]
        for new in plan.new_sequences:
            self._enter(new)
        self._append(plan)
        self._swap(plan)
        self._copy(plan)
        for new in plan.new_sequences:
            self._read(self.slots[new.slot])
        return self._run(plan)

    def _enter(self, new: NewSequence) -> None:
        assert 0 <= new.slot < self.info.max_num_seqs and new.slot not in self.slots
        length = len(new.tokens) // 4
        assert 0 < new.num_prompt <= length < self.info.max_model_len + 1
        prompt = new.tokens[: 4 * new.num_prompt]
        log = unpack(new.tokens[4 * new.num_prompt :]).tolist()
        seed, vocab = new.sampling.seed, self.info.vocab_size
        assert log == [token(prompt, seed, i, vocab) for i in range(len(log))], "a foreign log"
        assert 0 <= new.num_computed < length, "nothing is left to run"
        slot = _Slot(new, prompt, unpack(new.tokens).tolist(), new.num_computed)
        slot.pages, slot.dropped = [[] for _ in self.windows], [0] * len(self.windows)
        self.slots[new.slot] = slot

    def _append(self, plan: Plan) -> None:
        drops = _by_group(plan.drop_rows, plan.drop_groups, plan.drop_counts)
        for slot, group, count in drops:
            if not self.slots[slot].pages[group]:
                self.slots[slot].pages[group] = [0] * count
        pages = iter(unpack(plan.pages, "I"))
        for slot, group, count in _by_group(plan.page_rows, plan.page_groups, plan.page_counts):
            self.slots[slot].pages[group] += [next(pages) for _ in range(count)]
        assert next(pages, None) is None
        for slot, group, count in drops:
            assert self.slots[slot].dropped[group] < count < len(self.slots[slot].pages[group])
            self.slots[slot].dropped[group] = count
        # A slot that is done may be told of its release later than its pages are handed on.
        live = [page for slot in self.slots.values() if not slot.done for page in slot.own]
        assert all(page < self.info.num_pages for page in live)
        self._owners = Counter(live)

    def _swap(self, plan: Plan) -> None:
        out, back = unpack(plan.swap_out, "I"), unpack(plan.swap_in, "I")
        for page, host in zip(out[::2], out[1::2], strict=True):
            assert host < self.info.host_pages
            self.host[host] = list(self.cache[page])
        for host, page in zip(back[::2], back[1::2], strict=True):
            assert self._owners[page] == 1, "a shared page is written"
            self.cache[page] = list(self.host[host])

    def _copy(self, plan: Plan) -> None:
        for source, target in zip(
            unpack(plan.copy_from, "I"), unpack(plan.copy_to, "I"), strict=True
        ):
            assert self._owners[target] <= 1, "a shared page is written"
            self.cache[target] = list(self.cache[source])

    def _read(self, slot: _Slot) -> None:
        """Every key that the slot's next token sees is in its pages, and is its own prefix's."""
        size = self.info.page_size
        if slot.computed:
            slot.key(slot.computed - 1)
        for group, window in enumerate(self.windows):
            first = max(0, slot.computed + 1 - window) // size if window else 0
            assert first >= slot.dropped[group], "a page is missing"
            for number in range(first, -(-slot.computed // size)):
                page = slot.pages[group][number]
                keys = slot.keys[number * size : min((number + 1) * size, slot.computed)]
                wanted = [key + bytes((group,)) for key in keys]
                assert self.cache.get(page, [])[: len(wanted)] == wanted, "foreign keys in a page"

    def _write(self, slot: _Slot, start: int, end: int) -> None:
        size = self.info.page_size
        for position, group in product(range(start, end), range(len(self.windows))):
            page = slot.pages[group][position // size]
            assert position // size >= slot.dropped[group]
            assert self._owners[page] == 1, "a shared page is written"
            content = self.cache.setdefault(page, [b""] * size)
            content[position % size] = slot.key(position) + bytes((group,))

    def _run(self, plan: Plan, turn: int = 0) -> Result:
        rows, counts = unpack(plan.rows, "I"), unpack(plan.num_scheduled, "I")
        turns = unpack(plan.steps_per_row, "I").tolist() or [1] * len(rows)
        assert plan.num_steps <= max(turns, default=1), "a plan has a step without rows"
        assert len(set(rows)) == len(rows), "a slot runs twice"
        assert sum(counts) <= self.info.max_num_batched_tokens, "over the token budget"
        out: list[tuple[int, int, int]] = []
        finished: dict[int, str] = {}
        failed: dict[int, str] = {}
        vectors: dict[int, bytes] = {}
        for row, start, count, samples, number in zip(
            rows, unpack(plan.num_computed, "I"), counts, plan.samples, turns, strict=True
        ):
            assert number == 1 or (count, samples) == (1, 1), "more than a decode row is repeated"
            slot = self.slots[row]
            if slot.done or turn >= number:
                continue
            self._advance(slot, start + turn, count)
            if self.fail_on is not None and unpack(slot.prompt)[0] == self.fail_on:
                slot.done, failed[row] = True, "its numbers are not finite"
            elif slot.new.pooling is not None:
                vectors |= self._pool(row, slot, count)
            elif samples:
                out.append(self._sample(row, slot))
                if slot.done:
                    finished[row] = "stop"
        return Result(
            epoch=plan.epoch,
            step=plan.step + turn,
            rows=pack((row for row, _, _ in out), "I"),
            first=pack((first for _, first, _ in out), "I"),
            counts=b"\x01" * len(out),
            tokens=pack(value for _, _, value in out),
            finished=finished,
            failed=failed,
            duration_us=self.duration_us,
            swap_us=self.swap_us if plan.swap_out or plan.swap_in else 0,
            pooled=join(vectors),
        )

    def _pool(self, row: int, slot: _Slot, count: int) -> dict[int, bytes]:
        """The vector of a text that has come to its end."""
        assert slot.new.pooling is not None
        if slot.new.pooling.reach == "whole":
            assert count == slot.length, "a text that is run whole was cut"
        if slot.computed < slot.length or self.withhold:
            return {}
        slot.done = True
        return {row: vector(slot.prompt)}

    def _advance(self, slot: _Slot, start: int, count: int) -> None:
        assert count > 0 and start == slot.computed, "positions are not contiguous"
        self._read(slot)
        slot.computed += count
        assert slot.computed <= slot.length, "a token runs before it exists"
        room = min(len(pages) for pages in slot.pages) * self.info.page_size
        assert slot.computed <= room, "beyond its pages"
        self._write(slot, start, slot.computed)

    def _sample(self, row: int, slot: _Slot) -> tuple[int, int, int]:
        assert slot.computed == slot.length, "sampled before the last token"
        index, sampling = slot.length - slot.new.num_prompt, slot.new.sampling
        assert index < sampling.max_tokens and slot.length < self.info.max_model_len
        value = token(slot.prompt, sampling.seed, index, self.info.vocab_size)
        slot.tokens.append(value)
        slot.done = _stops(value, index, sampling)
        return row, index, value


class FakeWorker:
    """A `FakeEngine` behind the real FLEET protocol, in a thread.

    Life cycle: the thread starts with the context and joins when a scheduler answers; `close`
    (or the end of the context) stops it and raises what it raised.
    """

    def __init__(
        self,
        settings: Settings,
        info: WorkerInfo | None = None,
        *,
        name: str = "fake",
        step_ms: float = 0.0,
        fail_on: int | None = None,
    ) -> None:
        self.info = info or worker_info()
        self.name, self.step_ms, self.fail_on = name, step_ms, fail_on
        self.joined = threading.Event()
        """Set while a scheduler knows this worker."""
        self.hanging = threading.Event()
        """While set, the main thread is stuck: the worker beats, and does nothing else."""
        self.steps = 0
        self.error: Exception | None = None
        self._settings = settings
        self._plans = PlanQueue()
        self._held = PageHashTable()
        self._cache: dict[int, list[bytes]] = {}
        """What the pages hold outlives an epoch."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Fall silent, as a killed process does. Raises what went wrong in the thread."""
        self._stopped.set()
        self._thread.join(timeout=60)
        if self.error is not None:
            raise self.error

    def _guarded(self) -> None:
        try:
            self.run()
        except Exception as error:
            self.error = error

    def run(self) -> None:
        """Serve until closed; each registration is an epoch of its own."""
        where = StaticDirectory(self._settings)
        with (
            closing(where),
            Client(FLEET, where.first(FLEET), unique_identity(self.name)) as client,
        ):
            while not self._stopped.is_set():
                self._epoch(client, where)

    def _epoch(self, client: Client, where: StaticDirectory) -> None:
        who = ("worker", self.name, incarnation(), __version__)
        hello = Hello(*who, worker=self.info, held=self._held.held())
        handshake, engine = ClientHandshake(hello), FakeEngine(self.info, fail_on=self.fail_on)
        engine.cache = self._cache
        heart = Heartbeat(FLEET, where, hello, lambda: (self.steps, bool(self._plans)))
        self._plans.clear()
        try:
            while not self._stopped.is_set():
                if self.hanging.is_set():
                    self._stopped.wait(0.01)
                    continue
                if heart.rejected.is_set():
                    return
                wait((client,), 0 if self._plans else 0.01)
                known = handshake.server is not None
                if client.broke() and known:
                    return
                for received in client.drain():
                    if handshake.receive(received.message, time.monotonic()):
                        heart.start()
                        self.joined.set()
                    else:
                        self._take(received.message, hello.incarnation)
                        if isinstance(received.message, SetRole):
                            self.info = msgspec.structs.replace(
                                self.info, role=received.message.role
                            )
                if known and handshake.server is None:
                    return
                if handshake.server is None:
                    due = handshake.due(time.monotonic())
                    if due is not None:
                        client.send(due)
                elif self._plans:
                    self._execute(client, engine)
        finally:
            self.joined.clear()
            if heart.is_alive():
                heart.stop()

    def _take(self, message: Message, epoch: int) -> None:
        if isinstance(message, Plan) and message.epoch == epoch:
            self._plans.add(message)
        elif isinstance(message, TruncatePlan) and message.epoch == epoch:
            self._plans.truncate(message.step)
        elif isinstance(message, PageHashes) and message.epoch == epoch:
            self._held.update(message)

    def _execute(self, client: Client, engine: FakeEngine) -> None:
        if self.step_ms:
            time.sleep(self.step_ms / 1000)
        plan, turn = self._plans.first
        result = engine.step(plan, turn)
        self.steps += 1
        self._plans.advance()
        for received in client.drain():
            self._take(received.message, plan.epoch)
        client.send(self._plans.with_truncation(result))


class Fake(Settings, prefix="fake"):
    """A fake worker as a process of its own."""

    name: str = "fake"
    """Name on the fleet page."""
    step_ms: float = 1.0
    """Milliseconds that a step takes."""
    num_pages: int = 1024
    """KV pages."""
    page_size: int = 16
    """Tokens per page."""
    max_num_seqs: int = 64
    """Most sequences."""
    max_num_batched_tokens: int = 512
    """Most new tokens in one step."""
    max_model_len: int = 4096
    """Longest sequence."""
    model_name: str = "fake"
    """Name of the model that it says it serves."""
    vocab_size: int = VOCAB
    """Tokens are below this."""
    supervised: bool = False
    """Somebody tells the scheduler how this process ends."""


def main(argv: Sequence[str]) -> None:
    """Run one fake worker until the process is killed."""
    settings = Fake.load(argv)
    settings.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = worker_info(
        num_pages=settings.num_pages,
        page_size=settings.page_size,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        model=settings.model_name,
        vocab_size=settings.vocab_size,
    )
    process = process_id(os.getpid())
    info = msgspec.structs.replace(info, process=process, supervised=settings.supervised)
    FakeWorker(settings, info, name=settings.name, step_ms=settings.step_ms).run()


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
