"""Workers with a real model each and one scheduler's own decisions, in one process: what crosses
between the workers goes over real sockets and a real transport.

`python -m tests.fakes.worker_pairs` measures what is left to pull once a sequence has its first
token, with and without pulling keys while the prompt is computed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from baton.checkpoint.hub import resolve
from baton.protocol import (
    Grant,
    PageHashes,
    Plan,
    Pull,
    Pulled,
    Revoke,
    Sampling,
    Submit,
    Tokens,
    TruncatePlan,
    WorkerInfo,
)
from baton.protocol.token_columns import pack, unpack
from baton.settings import Settings
from baton_scheduler.disaggregation import handoff
from baton_scheduler.events import (
    Arrived,
    Decision,
    Dispatch,
    Reply,
    Settled,
    Tick,
    Transferred,
    WorkerJoined,
    WorkerMessage,
)
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.state import State
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Config
from baton_worker.engine.batch.draft_tokens import DraftOptions
from baton_worker.engine.batch.input_batch import BatchSizes, InputBatch
from baton_worker.engine.forward.causal_forward import CausalForward
from baton_worker.engine.model_runner import ModelRunner
from baton_worker.engine.plan_queue import PlanQueue
from baton_worker.kv_cache import KVCache, page_groups
from baton_worker.kv_transfer.manager import KVTransferManager
from baton_worker.layers.build_context import BuildContext
from baton_worker.speculative.proposer import Proposer

DEVICE = torch.device("cpu")
PATIENCE = 200.0
MOST_BESIDE = 3
"""Steps that a transfer may run beside: those of a tiny model are faster than some transfers, and
a sequence would end where it began."""


@dataclass
class Desk:
    """One worker: its model, its pages, and both halves of its relay."""

    runner: ModelRunner
    relay: KVTransferManager
    cache: KVCache
    inbox: deque[Plan | TruncatePlan] = field(default_factory=deque)
    plans: PlanQueue = field(default_factory=PlanQueue)
    pulled: list[Pulled] = field(default_factory=list)
    beside: int = 0
    """Steps since a transfer began to run beside them."""

    def arrived(self, most_beside: int | None) -> list[Pulled]:
        """Transfers that have ended, and all of them once they have had their number of steps."""
        self.beside = self.beside + 1 if self.relay.busy else 0
        ended, deadline = self.relay.finished(), time.monotonic() + PATIENCE
        while most_beside is not None and self.beside > most_beside and self.relay.busy:
            assert time.monotonic() < deadline, "a transfer does not end"
            time.sleep(0.001)
            ended += self.relay.finished()
        self.pulled += ended
        return ended


class Team:
    """One scheduler and a worker per (role, page size). Their relays have real sockets."""

    def __init__(
        self,
        loaded: LoadedModel,
        run_dir: Path,
        transport: str,
        *kinds: tuple[str, int],
        chunk: int = 16,
        max_model_len: int = 256,
        dtype: torch.dtype = torch.float32,
        most_beside: int | None = MOST_BESIDE,
        proposers: Mapping[str, Proposer] = {},
    ) -> None:
        self._proposers = proposers
        self.chunk, self.max_length, self.dtype = chunk, max_model_len, dtype
        self.most_beside = most_beside
        self.loaded = loaded
        self.state = State(SchedulerOptions(local_prefill_max_tokens=0))
        self.desks: dict[str, Desk] = {}
        self.logs: dict[int, list[int]] = {}
        self.cached: Counter[int] = Counter()
        for role, page_size in kinds:
            self._join(role, page_size, Config(run_dir=run_dir, role=role, kv_transports=transport))  # type: ignore[arg-type]

    def _join(self, role: str, size: int, config: Config) -> None:
        groups, num_pages = (
            page_groups(self.loaded.spec, size, self.dtype),
            8 * self.max_length // size,
        )
        kind: dict[str, Any] = {"dtype": self.dtype, "device": DEVICE, "groups": groups}
        cache = KVCache(self.loaded.spec, num_pages, size, **kind, spare=1)
        batch = InputBatch(
            BatchSizes(
                max_num_seqs=8,
                max_model_len=self.max_length,
                page_size=size,
                num_pages=num_pages,
                vocab_size=self.loaded.vocab_size,
                windows=groups.windows,
            ),
            drafting=DraftOptions(self._proposers.get(role), 4),
        )
        name = f"{role}-{len(self.desks)}"
        # An address that does not depend on the process, which both share.
        config = config.model_copy(update={"bind_kv": f"ipc://{config.run_dir}/{name}"})
        relay = KVTransferManager(cache, config, name)
        relay.start()
        runner = ModelRunner(CausalForward(self.loaded.model, cache, DEVICE), cache, batch)
        self.desks[name] = Desk(runner, relay, cache)
        info = WorkerInfo(
            "m", num_pages, size, 8, self.chunk, self.max_length, self.loaded.vocab_size,
            role=role, kv_address=relay.address, kv_layout=relay.layout, windows=groups.windows,
            num_speculative_tokens=4 if role in self._proposers else 0,
        )  # fmt: skip
        self._take(self.state.apply(WorkerJoined(name, 1, info)))

    def submit(self, prompt: list[int], sampling: Sampling) -> int:
        handle = len(self.logs)
        self.logs[handle] = []
        self._take(
            self.state.apply(Arrived("g", Submit(handle, f"r{handle}", pack(prompt), sampling)))
        )
        return handle

    def finish(self) -> dict[int, list[int]]:
        deadline = time.monotonic() + PATIENCE
        while not self.state.idle:
            assert time.monotonic() < deadline
            self.turn()
        self.state.check()
        return self.logs

    def turn(self) -> None:
        """What is due is decided, and every worker does a step."""
        self._take(self.state.apply(Tick(0.0)))
        for name, desk in self.desks.items():
            self._turn(name, desk)

    def _turn(self, name: str, desk: Desk) -> None:
        while desk.inbox:
            message = desk.inbox.popleft()
            if isinstance(message, Plan):
                desk.plans.add(message)
            else:
                desk.plans.truncate(message.step)
        if desk.plans:
            result = desk.runner.step(*desk.plans.first)
            desk.plans.advance()
            self._take(self.state.apply(Settled(name, desk.plans.with_truncation(result))))
        for pulled in desk.arrived(self.most_beside):
            self._take(self.state.apply(Transferred(name, pulled)))

    def _take(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Reply):
                self._hear(decision.message)
            elif isinstance(decision, Dispatch) or isinstance(decision.message, TruncatePlan):
                self.desks[decision.worker].inbox.append(decision.message)  # type: ignore[arg-type]
            else:
                assert isinstance(decision, WorkerMessage)
                if not isinstance(decision.message, PageHashes):
                    assert isinstance(decision.message, Grant | Pull | Revoke)
                    self._run_all(decision.worker, decision.message)

    def _run_all(self, name: str, message: Grant | Pull | Revoke) -> None:
        """Plans that are on the way may still write to pages that have changed hands: they first,
        as in `baton_worker.service`."""
        desk = self.desks[name]
        if isinstance(message, Pull):
            while desk.plans or desk.inbox:
                self._turn(name, desk)
        desk.relay.take(message)

    def _hear(self, message: Any) -> None:
        assert isinstance(message, Tokens)
        self.cached.update(message.cached)
        tokens = iter(unpack(message.tokens).tolist())
        for handle, count in zip(unpack(message.handles, "I"), message.counts, strict=True):
            self.logs[handle] += islice(tokens, count)

    def close(self) -> None:
        for desk in self.desks.values():
            desk.relay.close()


def handover(made: Team, prompt: list[int]) -> tuple[float, float, int]:
    """MB that are pulled once the first token exists, the milliseconds that takes, and the tokens
    that the prefill worker gives until then."""
    handle = made.submit(prompt, Sampling(40, temperature=0.0))
    decode, early = made.desks["decode-1"], 0
    while not made.state.counters.handoffs:
        if not made.logs[handle]:
            early = len(decode.pulled)
        made.turn()
    late, tokens = decode.pulled[early:], len(made.logs[handle])
    made.finish()
    num_bytes, microseconds = sum(p.num_bytes for p in late), sum(p.duration_us for p in late)
    return num_bytes / 1e6, microseconds / 1e3, tokens


def main() -> None:
    """Alternate the two on the default model, and print medians."""
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.worker_pairs")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--transport", default="shm")
    given = parser.parse_args()
    torch.set_num_threads(1)
    loaded = load_model(resolve(Settings()), BuildContext(DEVICE, torch.bfloat16))
    found: dict[str, list[tuple[float, float, int]]] = {"at the end": [], "in parts": []}
    for number in range(given.rounds):
        for name, part in (("at the end", 10**9), ("in parts", handoff._LEAST_PART)):
            prompt = [(n * (number + 3)) % 40_000 + 100 for n in range(given.tokens)]
            with tempfile.TemporaryDirectory() as folder:
                kinds = (("prefill", 16), ("decode", 16))
                size: dict[str, Any] = {
                    "chunk": 256,
                    "max_model_len": 2048,
                    "dtype": torch.bfloat16,
                }
                made = Team(loaded, Path(folder), given.transport, *kinds, **size, most_beside=None)
                before, handoff._LEAST_PART = handoff._LEAST_PART, part
                found[name].append(handover(made, prompt))
                handoff._LEAST_PART = before
                made.close()
    for name, rows in found.items():
        size, took, tokens = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{name}: {size:.1f} MB in {took:.0f} ms, {tokens:.0f} tokens on the prefill worker")


if __name__ == "__main__":
    main()
