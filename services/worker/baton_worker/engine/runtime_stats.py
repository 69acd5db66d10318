"""Runtime statistics in the log: composition of steps, and time per kind of layer."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager as Context
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from baton_worker.attention.call_stats import CallStats
from baton_worker.engine.batch.batch_rows import BatchRows
from baton_worker.layers.layer import Bare

_SHOWN = 8
"""Kinds of layers that a report names; the rest is one figure."""


class LayerTimes:
    """Seconds per kind of layer, without nested layers. A GPU is synchronized before and after each
    layer, so times show the cost of layers, not of steps.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self._inner = [0.0]
        """Per open layer, what its own layers have taken so far."""
        self._cuda = device.type == "cuda"

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Time every layer call of this process within the block. Layers have no hooks, which would
        slow every step; their common call is replaced for the measured step.
        """
        plain = Bare.__call__
        setattr(Bare, "__call__", lambda layer, *args: self._call(plain, layer, args))  # noqa: B010
        try:
            yield
        finally:
            setattr(Bare, "__call__", plain)  # noqa: B010

    def _call(self, plain: Callable[..., Any], layer: Bare, args: tuple[Any, ...]) -> Any:
        self._inner.append(0.0)
        begin = self._now()
        try:
            return plain(layer, *args)
        finally:
            elapsed = self._now() - begin
            kind = type(layer).__name__
            self.seconds[kind] += elapsed - self._inner.pop()
            self.calls[kind] += 1
            self._inner[-1] += elapsed

    def _now(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


class RuntimeStats:
    """Counts `every` steps, and times the layers of the last of them.

    Args:
        every: steps of one report.
        device: where the model runs.
        counts: counters of attention backends, if any.
    """

    def __init__(self, every: int, device: torch.device, counts: CallStats | None = None) -> None:
        assert every > 0
        self._every, self._device, self._counts = every, device, counts
        self._clear()

    def _clear(self) -> None:
        self._steps = self._prompt_steps = self._prompt_tokens = self._decoded = 0
        self._rows: list[int] = []
        self._seconds = self._gaps = 0.0
        self._times: LayerTimes | None = None
        if self._counts is not None:
            self._counts.clear()

    def watching(self) -> Context[None]:
        """The context in which the next step runs."""
        if self._steps + 1 < self._every:
            return nullcontext()
        self._times = LayerTimes(self._device)
        return self._times.watching()

    def close_step(self, rows: BatchRows, seconds: float, gap: float) -> str:
        """Count a step. Returns the report each time that there is one, else nothing."""
        prompt = int(rows.counts[rows.counts > 1].sum())
        self._steps += 1
        self._prompt_steps += prompt > 0
        self._prompt_tokens += prompt
        self._decoded += int((rows.counts == 1).sum())
        self._rows.append(len(rows))
        self._seconds += seconds
        self._gaps += gap
        if self._times is None:
            return ""
        parts = [self._composition(), _layers(self._times, len(rows), seconds)]
        if self._counts is not None:
            parts.insert(1, str(self._counts))
        self._clear()
        return "; ".join(parts)

    def _composition(self) -> str:
        steps = self._steps
        return (
            f"{steps} steps: {self._prompt_steps} with prompts ({self._prompt_tokens} tokens), "
            f"{self._decoded} tokens decoded, rows {min(self._rows)} to {max(self._rows)} "
            f"(mean {sum(self._rows) / steps:.1f}), {self._seconds / steps * 1e3:.2f} ms a step, "
            f"gap {self._gaps / steps * 1e3:.2f} ms"
        )


def _layers(times: LayerTimes, rows: int, seconds: float) -> str:
    """The last step by kind of layer; the rest is sampling, tables and bookkeeping."""
    ranked = sorted(times.seconds.items(), key=lambda item: -item[1])
    shown = [f"{kind} {s * 1e3:.2f} x{times.calls[kind]}" for kind, s in ranked[:_SHOWN]]
    if more := ranked[_SHOWN:]:
        shown.append(f"{len(more)} other kinds {sum(s for _, s in more) * 1e3:.2f}")
    outside = seconds - sum(times.seconds.values())
    listed = ", ".join([*shown, f"outside layers {outside * 1e3:.2f}"])
    return f"the last one, of {rows} rows, in ms: {listed}"
