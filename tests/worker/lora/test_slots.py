"""Which adapter is where: pinned while used, the longest unused one makes room; then plans of the
scheduler on a model with adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from baton.protocol import Sampling
from baton_scheduler.options import SchedulerOptions
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.lora.slots import AdapterSlots
from baton_worker.speculative.proposer import DraftRequest, DraftSampler, Proposer, Tokens
from tests.support.worker.adapted_model import NAMES, Adapted
from tests.support.worker.lora_folders import merge
from tests.support.worker.scheduled_engine import House

PROMPT = [7 + (31 * i) % 300 for i in range(22)]
GREEDY = Sampling(24, temperature=0.0)


def slots(adapted: Adapted) -> AdapterSlots:
    return AdapterSlots(adapted.store, adapted.store.targets, 2, 4)


@pytest.mark.row("F11.01")
def test_an_adapter_stays_while_it_is_used(adapted: Adapted) -> None:
    here = slots(adapted)
    one, two, three = map(adapted.digest, NAMES)
    assert [here.enter(slot, digest) for slot, digest in enumerate((one, b"", two))] == [""] * 3
    assert here.of(np.arange(4)).tolist() == [0, -1, 1, -1] and here.in_use == {one, two}
    assert "--max-loras" in here.enter(3, three)
    here.release([0])
    assert here.enter(3, three) == "" and here.of(np.array([3, 2])).tolist() == [0, 1]
    assert "not loaded" in here.enter(0, b"?" * 16)
    here.release([2, 3])
    assert here.enter(1, two) == "" and here.of(np.array([1])).tolist() == [1], "it was still there"
    here.release([1])
    assert here.enter(0, one) == "" and here.of(np.array([0])).tolist() == [0], "three is older"


@pytest.fixture(scope="module")
def alone(adapted: Adapted, tmp_path_factory: pytest.TempPathFactory) -> dict[bytes, list[int]]:
    """What each adapter answers, from a checkpoint that it is merged into."""
    answers, plain = {}, SchedulerOptions(enable_prefix_caching=False)
    for name in ("", *NAMES):
        folder = adapted.base
        if name:
            merged = tmp_path_factory.mktemp("merged") / name
            folder = merge(adapted.base, adapted.folders[name], merged)
        house = House(load_model(folder, BuildContext(torch.device("cpu"), torch.float32)), plain)
        house.submit(PROMPT, GREEDY)
        answers[adapted.digest(name)] = house.finish()[0]
    assert len({tuple(log) for log in answers.values()}) == 4
    return answers


def serve(adapted: Adapted, limits: SchedulerOptions, **sizes: Any) -> House:
    return House(adapted.loaded, limits, adapters=adapted.store, column=adapted.column, **sizes)


@pytest.mark.row("F11.01", "F11.02")
def test_every_sequence_gets_the_tokens_of_its_adapter(
    adapted: Adapted, alone: dict[bytes, list[int]]
) -> None:
    """More adapters than places, one prompt: chunks, shared pages within an adapter only, and a
    cache too small for all, so that sequences are preempted and resumed from their logs."""
    for limits, pages in (
        (SchedulerOptions(max_num_batched_tokens=9), 64),
        (SchedulerOptions(), 26),
    ):
        house = serve(adapted, limits, num_pages=pages)
        wanted = {}
        for digest in [*alone] * 2:
            handle = house.submit(PROMPT, GREEDY, adapter=digest)
            wanted[handle] = alone[digest]
        assert house.finish() == wanted
        assert pages > 26 or house.state.counters.preemptions > 0
    house = serve(adapted, SchedulerOptions())
    for digest in [*alone] * 2:
        handle = house.submit(PROMPT, GREEDY, adapter=digest)
        house.finish()
        assert house.logs[handle] == alone[digest]
    assert [house.cached.get(handle, 0) for handle in range(8)] == [0] * 4 + [21] * 4


def knowing(alone: dict[bytes, list[int]]) -> Proposer:
    """Drafts what any of the answers says next: right for one adapter, wrong for the others."""

    class Knowing(Proposer):
        def propose(self, requests: Sequence[DraftRequest], sampler: DraftSampler) -> list[Tokens]:
            return [self._next(request) for request in requests]

        def _next(self, request: DraftRequest) -> Tokens:
            log = request.tokens[len(PROMPT) :].tolist()
            whole = next((a for a in alone.values() if a[: len(log)] == log), [3] * 24)
            return np.array(whole[len(log) : len(log) + request.most], np.int32)

    return Knowing()


@pytest.mark.row("F11.02")
def test_drafts_are_verified_by_the_adapter_of_their_row(
    adapted: Adapted, alone: dict[bytes, list[int]]
) -> None:
    house = serve(adapted, SchedulerOptions(), proposer=knowing(alone))
    wanted = {house.submit(PROMPT, GREEDY, adapter=digest): log for digest, log in alone.items()}
    assert house.finish() == wanted
    assert len(house.results) < 24, "drafts were accepted"


@pytest.mark.row("F11.01")
def test_a_log_of_another_worker_is_continued(
    adapted: Adapted, alone: dict[bytes, list[int]]
) -> None:
    house = serve(adapted, SchedulerOptions())
    handles = {
        house.submit(PROMPT, GREEDY, log=log[:9], adapter=digest): log
        for digest, log in alone.items()
    }
    house.finish()
    assert all(house.logs[handle] == log for handle, log in handles.items())
