"""An engine driven by the real scheduler state."""

from __future__ import annotations

from collections import deque
from itertools import islice

import msgspec
import torch

from baton.protocol import (
    Failed,
    PageHashes,
    Plan,
    Result,
    Sampling,
    Submit,
    Tokens,
    TruncatePlan,
    WorkerInfo,
)
from baton.protocol.token_columns import pack, unpack
from baton_scheduler.events import (
    Aborted,
    Arrived,
    Decision,
    Dispatch,
    Settled,
    Tick,
    WorkerJoined,
    WorkerMessage,
)
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.state import State
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.engine.async_scheduling.async_forward import AsyncForward
from baton_worker.engine.async_scheduling.staged_steps import StagedSteps
from baton_worker.engine.async_scheduling.step_pipeline import StepPipeline
from baton_worker.engine.batch.draft_tokens import DraftOptions
from baton_worker.engine.batch.input_batch import BatchSizes, InputBatch
from baton_worker.engine.forward.causal_forward import CausalForward
from baton_worker.engine.model_runner import ModelRunner
from baton_worker.engine.plan_queue import PlanQueue
from baton_worker.kernels.lora import TokenAdapters
from baton_worker.kernels.page_layout import Layout
from baton_worker.kv_cache import (
    KVCache,
    LayerGroups,
    page_groups,
)
from baton_worker.kv_cache.host_pages import HostPages
from baton_worker.lora.slots import AdapterSlots
from baton_worker.lora.store import AdapterStore
from baton_worker.platform.device_link import DeviceLink
from baton_worker.sampling import Sampler
from baton_worker.sampling.sampler_backend import SamplerBackend
from baton_worker.speculative.proposer import Proposer
from baton_worker.speculative.token_tree import TokenTree

DEVICE = torch.device("cpu")


STORY = [1, 403, 407, 261, 378, 432, 383, 286, 261, 376]


class House:
    """One scheduler and one worker. A turn: a step of the worker, its result, what follows."""

    def __init__(
        self,
        loaded: LoadedModel,
        limits: SchedulerOptions | None = None,
        *,
        num_pages: int = 64,
        host_pages: int = 0,
        layout: Layout = Layout.NHD,
        groups: LayerGroups | None = None,
        adapters: AdapterStore | None = None,
        column: TokenAdapters | None = None,
        proposer: Proposer | None = None,
        num_speculative_tokens: int = 5,
        token_tree: TokenTree | None = None,
        link: DeviceLink | None = None,
        device: torch.device = DEVICE,
        stages: int = 1,
        pages: KVCache | None = None,
    ) -> None:
        """`adapters` are served two at a time, and `column` is what the model was built with. With
        a `link` steps are launched ahead. The worker says that it has so many `stages`. `pages` are
        as many as `num_pages`."""
        groups = page_groups(loaded.kv_spec, 4, torch.float32) if groups is None else groups
        cache = pages or KVCache(
            loaded.kv_spec,
            num_pages,
            4,
            dtype=torch.float32,
            device=device,
            layout=layout,
            groups=groups,
            spare=1,
        )
        batch = InputBatch(
            BatchSizes(
                max_num_seqs=8,
                max_model_len=256,
                page_size=4,
                num_pages=num_pages,
                vocab_size=loaded.vocab_size,
                windows=groups.windows,
            ),
            adapters=adapters and AdapterSlots(adapters, adapters.targets, 2, 8),
            drafting=DraftOptions(proposer, num_speculative_tokens, token_tree=token_tree),
        )
        host = HostPages(cache, host_pages) if host_pages else None
        self.pipeline: StepPipeline | StagedSteps | None = None
        if link is None:
            forward = CausalForward(loaded.model, cache, device, column)
            self.runner = ModelRunner(forward, cache, batch, host=host)
        else:
            forward = AsyncForward(loaded.model, cache, device, link, 8)
            sampler = Sampler(SamplerBackend("triton"))
            self.runner = ModelRunner(forward, cache, batch, host=host, sampler=sampler)
            self.pipeline = StepPipeline(self.runner, speculates=proposer is not None)
        self.state = State(limits or SchedulerOptions())
        self.inbox: deque[Plan | TruncatePlan] = deque()
        self.plans = PlanQueue()
        self.sent: list[Plan] = []
        self.results: list[Result] = []
        self.logs: dict[int, list[int]] = {}
        self.cached: dict[int, int] = {}
        self.failures: dict[int, str] = {}
        sizes = (num_pages, 4, 8, 2048, 256, loaded.vocab_size)
        info = WorkerInfo(
            "m",
            *sizes,
            host_pages=host_pages,
            windows=groups.windows,
            adapters=adapters.infos if adapters else (),
            max_loras=2,
            num_speculative_tokens=num_speculative_tokens if proposer else 0,
            pipeline_stages=stages,
        )
        self.state.apply(WorkerJoined("w", 1, info))

    def submit(
        self,
        prompt: list[int],
        sampling: Sampling,
        request: str = "",
        log: list[int] | None = None,
        adapter: bytes = b"",
        prediction: bytes = b"",
    ) -> int:
        handle = len(self.logs)
        self.logs[handle] = list(log or [])
        name = request or f"r{handle}"
        submit = Submit(
            handle,
            name,
            pack(prompt),
            sampling,
            log=pack(log or []),
            adapter=adapter,
            prediction=prediction,
        )
        self._take(self.state.apply(Arrived("g", submit)))
        return handle

    def abort(self, handle: int) -> None:
        self._take(self.state.apply(Aborted("g", pack([handle], "I"))))

    def turn(self) -> None:
        self._take(self.state.apply(Tick(0.0)))
        if not self.plans:
            self._arrive()
        results = self._step()
        self._arrive()  # What came while the step ran.
        for result in results:
            # Whether to swap is not to depend on the speed of this machine.
            result = msgspec.structs.replace(result, swap_us=0)
            self.results.append(self.plans.with_truncation(result))
            self._take(self.state.apply(Settled("w", self.results[-1])))
        self.state.check()

    def _step(self) -> list[Result]:
        if not self.plans:
            return self.pipeline.finish() if self.pipeline else []
        plan = self.plans.first
        results = (
            [self.runner.step(*plan)] if self.pipeline is None else self.pipeline.submit(*plan)
        )
        self.plans.advance()
        return results

    def finish(self) -> dict[int, list[int]]:
        for _ in range(2000):
            if self.state.idle:
                return self.logs
            self.turn()
        raise AssertionError("it does not come to an end")

    def _arrive(self) -> None:
        while self.inbox:
            message = self.inbox.popleft()
            if isinstance(message, Plan):
                self.plans.add(message)
            else:
                self.plans.truncate(message.step)

    def _take(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Dispatch):
                self.inbox.append(decision.message)
                self.sent.append(decision.message)
            elif isinstance(decision, WorkerMessage):
                if not isinstance(decision.message, PageHashes):
                    assert isinstance(decision.message, TruncatePlan)
                    self.inbox.append(decision.message)
            elif isinstance(decision.message, Failed):
                self.failures[decision.message.handle] = decision.message.message
            else:
                assert isinstance(decision.message, Tokens)
                self._hear(decision.message)

    def _hear(self, message: Tokens) -> None:
        self.cached |= message.cached
        tokens = iter(unpack(message.tokens).tolist())
        rows = zip(unpack(message.handles, "I"), message.counts, strict=True)
        for handle, count in rows:
            self.logs[handle] += islice(tokens, count)


def varied(length: int = 24) -> list[Sampling]:
    return [
        Sampling(length, temperature=0.0),
        Sampling(length - 5, seed=2, temperature=0.7, top_p=0.9),
        Sampling(length, seed=3, top_k=20, stop_ids=(261,), min_tokens=4),
        Sampling(length - 9, seed=4, repetition_penalty=1.3),
    ]


def busy(house: House) -> list[list[int]]:
    """A run with arrivals and an abort at fixed points of the logs."""
    samplings = varied(28)
    first = [house.submit(STORY[: 3 + i], s) for i, s in enumerate(samplings)]
    doomed = house.submit(STORY, Sampling(99, seed=50))
    while len(house.logs[first[0]]) < 7:
        house.turn()
    late = [house.submit(STORY[i:], s) for i, s in enumerate(samplings)]
    while len(house.logs[doomed]) < 12:
        house.turn()
    house.abort(doomed)
    house.finish()
    return [house.logs[handle] for handle in (*first, *late)]
