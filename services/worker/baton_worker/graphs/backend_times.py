"""Times of an attention backend for typical steps, replayed where it can be captured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from baton_worker.attention import AttentionBatch, AttentionSpec, Backend
from baton_worker.attention.backend import RefreshedPlan
from baton_worker.graphs.capture import Recorder
from baton_worker.kernels.cpu.call_recorder import Extent
from baton_worker.platform.device_clock import Clock

_LAYERS = 32
"""Layers that share the plan of a step."""
_STEPS = 10
_GAP_SECONDS = 5e-4
"""Seconds that a decode step takes longer if it is not launched ahead: host work between two
steps."""


@dataclass(frozen=True, slots=True)
class Case:
    """A step of so many rows of equal length."""

    rows: int
    num_new: int
    """New tokens of a row."""
    length: int
    """Tokens of a row, the new ones included."""


CASES = {
    "64 decode rows of 1024": Case(64, 1, 1024),
    "1 decode row of 16384": Case(1, 1, 16384),
    "a prompt of 4096, its last 2048": Case(1, 2048, 4096),
}
"""More than a cache of the device holds, so that keys come from its memory."""


def step_seconds(
    backend: Backend,
    call: AttentionSpec,
    page_size: int,
    case: Case,
    recorder: Recorder,
    clock: Clock,
) -> float:
    """Time of the attention of a step over all layers, planning included."""
    batch, device = _batch(case, page_size, call.device), call.device
    query = torch.zeros(
        (case.rows * case.num_new, call.num_heads, call.head_dim), dtype=call.dtype, device=device
    )
    shape = (1 if call.latent else 2, call.num_kv_heads, call.head_dim)
    number = case.rows * -(-case.length // page_size)
    pages = call.layout.zeros((number, page_size, *shape), dtype=call.dtype, device=device)
    if case.num_new > 1 or backend.capture_blocker is not None:
        return clock.seconds(lambda: _eager(backend, call, batch, query, pages), _STEPS)
    plan = backend.plan(replace(batch, captured=True), call)

    def run() -> tuple[()]:
        for _ in range(_LAYERS):
            backend.forward(plan, query, pages)
        return ()

    recording = recorder.capture(run, Extent.decode(case.rows))

    def step() -> None:
        if isinstance(plan, RefreshedPlan):
            plan.refresh([case.length] * case.rows)
        recording.replay(Extent.decode(case.rows))

    gap = _GAP_SECONDS if backend.launch_blocker else 0.0
    return clock.seconds(step, _STEPS) + gap


def _eager(
    backend: Backend, call: AttentionSpec, batch: AttentionBatch, query: Any, pages: Any
) -> None:
    plan = backend.plan(batch, call)
    for _ in range(_LAYERS):
        backend.forward(plan, query, pages)


def _batch(case: Case, page_size: int, device: torch.device) -> AttentionBatch:
    width = -(-case.length // page_size)
    tables = np.arange(case.rows * width, dtype=np.int32).reshape(case.rows, width)
    starts = [case.length - case.num_new] * case.rows
    return AttentionBatch.build([case.num_new] * case.rows, starts, tables, page_size, device)
