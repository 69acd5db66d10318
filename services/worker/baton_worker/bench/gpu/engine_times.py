"""Times of a whole engine: start-up by phase, decode steps, prompts, the parts of a step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from baton.checkpoint.hub import resolve as fetch
from baton.protocol import NewSequence, Plan, Sampling
from baton.protocol.token_columns import pack
from baton_worker.bench.engine import Load
from baton_worker.bench.gpu.device_timer import DeviceTimer
from baton_worker.config import Config
from baton_worker.engine.engine import Engine
from baton_worker.engine.engine_config import EngineConfig
from baton_worker.engine.startup import load, prepare
from baton_worker.executor.executor import Executor

T = TypeVar("T")
_SHOWN = 25
"""Kernels of the profile."""
_TOKENS = 256
"""Token ids of prompts: the first so many of the vocabulary."""


def start(config: Config) -> tuple[Engine, dict[str, float]]:
    """Build an engine of one process; returns it with the seconds of each phase."""
    seconds = dict[str, float]()

    def timed(phase: str, run: Callable[[], T]) -> T:
        begin = time.perf_counter()
        result = run()
        seconds[phase] = time.perf_counter() - begin
        return result

    context = timed("device", lambda: prepare(config))
    team = Executor()
    loaded, resolved, _ = timed(
        "weights", lambda: load(config, fetch(config), context, team.ranks, team.lockstep)
    )
    engine = timed("cache", lambda: Engine(loaded, resolved, team=team))
    timed("warm-up and capture", engine.warm_up)
    return engine, seconds


def decode(
    engine: Engine, timer: DeviceTimer, rows: Sequence[int], contexts: Sequence[int], steps: int
) -> list[dict[str, Any]]:
    """Seconds per decode step for each number of rows and length that fits; the KV before is
    taken as computed."""
    results = []
    for context in contexts:
        for count in rows:
            if not fits(engine.resolved, count, context + steps + 1):
                continue
            walls = _walls(engine, timer, count, context, steps)
            wall = statistics.median(walls)
            figures = {"rows": count, "context": context, "ms": wall * 1e3}
            results.append(figures | {"tokens_per_second": count / wall})
    return results


def fits(resolved: EngineConfig, rows: int, length: int) -> bool:
    """Whether so many sequences of such a length have room."""
    pages = rows * -(-length // resolved.page_size) * len(resolved.groups.windows)
    short = rows <= resolved.max_num_seqs and length <= resolved.max_model_len
    return short and pages <= resolved.num_pages


def _walls(engine: Engine, timer: DeviceTimer, rows: int, context: int, steps: int) -> list[float]:
    """Seconds between the results of successive steps."""
    engine.reset()
    walls, last = list[float](), None
    for plan in decode_plans(engine.resolved, rows, context, steps):
        for _ in engine.submit(plan):
            now = time.perf_counter()
            walls += [] if last is None else [now - last]
            last = now
    engine.finish()
    timer.synchronize()
    engine.reset()
    return walls


def decode_plans(resolved: EngineConfig, rows: int, context: int, steps: int) -> Iterator[Plan]:
    """Sequences enter with all but their last token computed, and decode."""
    groups, slots = len(resolved.groups.windows), pack(range(rows), "I")
    pages = -(-(context + steps + 1) // resolved.page_size)
    ones = pack([1] * rows, "I")
    how = Sampling(steps + 1, temperature=0.0)
    for step in range(steps):
        fresh = {
            "new_sequences": tuple(
                NewSequence(slot, _text(context, slot), context, how, num_computed=context - 1)
                for slot in range(rows)
            ),
            "page_rows": pack([*range(rows)] * groups, "I"),
            "page_counts": pack([pages] * rows * groups, "I"),
            "pages": pack(range(rows * pages * groups), "I"),
            "page_groups": bytes(group for group in range(groups) for _ in range(rows)),
        }
        yield Plan(
            0,
            step,
            slots,
            pack([context - 1 + step] * rows, "I"),
            ones,
            bytes([1] * rows),
            **({} if step else fresh),  # type: ignore[arg-type]
        )


def _text(length: int, seed: int = 0) -> bytes:
    """Packed random tokens: rows that differ choose experts that differ."""
    return pack(np.random.default_rng(seed).integers(_TOKENS, size=length).tolist())


def prefill(engine: Engine, timer: DeviceTimer, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Tokens per second of one prompt of each length that fits."""
    results = []
    for length in lengths:
        if not fits(engine.resolved, 1, length + 2):
            continue
        seconds = []
        for _ in range(3):
            engine.reset()
            plans = list(Load(engine.resolved, length, 1, 1).prefill(0, _text(length)))
            begin = time.perf_counter()
            for plan in plans:
                engine.submit(plan)
            engine.finish()
            timer.synchronize()
            seconds.append(time.perf_counter() - begin)
        engine.reset()
        median = statistics.median(seconds)
        results.append({"tokens": length, "ms": median * 1e3, "tokens_per_second": length / median})
    return results


def anatomy(engine: Engine, timer: DeviceTimer, rows: int, context: int) -> dict[str, Any]:
    """Of a decode step: wall time, host time of its launch, and device time by kernel."""
    if not fits(engine.resolved, rows, context + 33):
        return {}
    walls = _walls(engine, timer, rows, context, 32)
    engine.reset()
    plans = list(decode_plans(engine.resolved, rows, context, 32))
    launches = [_launched(engine, plan) for plan in plans[:16]]
    kernels = _profiled(engine, timer, plans[16:])
    return {
        "rows": rows,
        "context": context,
        "wall_ms": statistics.median(walls) * 1e3,
        "submit_ms": statistics.median(launches) * 1e3,
        "kernels": kernels,
    }


def _launched(engine: Engine, plan: Plan) -> float:
    """Seconds in which the host launches a step."""
    begin = time.perf_counter()
    engine.submit(plan)
    return time.perf_counter() - begin


def _profiled(engine: Engine, timer: DeviceTimer, plans: Sequence[Plan]) -> list[dict[str, Any]]:
    """The kernels of the last steps of an engine, see `_kernels`."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if timer.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        for plan in plans:
            engine.submit(plan)
        engine.finish()
        timer.synchronize()
    engine.reset()
    return _kernels(profile, timer.device, len(plans))


def _kernels(profile: Any, device: torch.device, steps: int) -> list[dict[str, Any]]:
    """Microseconds per step, the most first."""
    kind = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    rows = [
        {"name": event.key, "us": getattr(event, kind) / steps, "calls": event.count / steps}
        for event in profile.key_averages()
        # An operator has the time of the kernels that it launched, which are events too.
        if getattr(event, kind) > 0 and not (device.type == "cuda" and "::" in event.key[:6])
    ]
    return sorted(rows, key=lambda row: -row["us"])[:_SHOWN]
