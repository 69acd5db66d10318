"""Sweeps: consecutive closed loops against one server with one varying parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from baton.errors import SettingsError, Unavailable
from baton_ops.bench.load_generator import Target, closed_loop
from baton_ops.bench.progress import ProgressBars
from baton_ops.bench.prompts import Lengths, Prompts, requests
from baton_ops.bench.summary import Summary, summarise

_RUN_SECONDS = 600.0
"""Seconds after which a run sends no more requests."""


def ascending(levels: Sequence[int], name: str) -> tuple[int, ...]:
    """Return the levels. Raises `SettingsError` unless there are at least two in ascending
    order."""
    if len(levels) < 2 or any(b <= a for a, b in pairwise(levels)):
        listed = ", ".join(map(str, levels)) or "none"
        raise SettingsError(f"The curve '{name}' needs two or more ascending levels, not {listed}.")
    return tuple(levels)


@dataclass(frozen=True)
class Point:
    """One level of a sweep."""

    level: int
    summary: Summary


@dataclass(frozen=True)
class Usual:
    """Request parameters that stay constant."""

    input_len: int
    output_len: int
    rounds: int
    """Requests per slot of a loop."""
    seed: int = 0


class Sweep:
    """Runs that share a server, prompts and progress bars."""

    def __init__(self, target: Target, prompts: Prompts, bars: ProgressBars, usual: Usual) -> None:
        self._target, self._prompts, self._bars, self._usual = target, prompts, bars, usual
        self._num_runs = 0

    async def warm_up(self) -> None:
        """Send unmeasured requests, so that lazy initialisation is not measured."""
        await self._run("warm-up", 2, self._usual.input_len)

    async def loads(self, levels: Sequence[int]) -> list[Point]:
        """Run with increasing numbers of requests in flight."""
        return [await self.load(n, f"{n} in flight", n) for n in levels]

    async def load(self, level: int, name: str, concurrency: int) -> Point:
        """Run with `concurrency` requests in flight, under the given name."""
        return Point(level, await self._run(name, concurrency, self._usual.input_len))

    async def contexts(self, levels: Sequence[int], longest: int | None) -> list[Point]:
        """Run with increasing prompt lengths, one request at a time; prompt and output fit in
        `longest`."""
        if longest is not None:
            room = longest - self._usual.output_len
            levels = ascending(sorted({min(level, room) for level in levels}), "context")
        return [Point(n, await self._run(f"context {n}", 1, n)) for n in levels]

    async def _run(self, name: str, concurrency: int, input_len: int) -> Summary:
        """Run one closed loop. Raises `Unavailable` when a request fails, since a cost is undefined
        then."""
        self._num_runs += 1
        count, seed = concurrency * self._usual.rounds, self._usual.seed * 1000 + self._num_runs
        lengths = Lengths("fixed", input_len, self._usual.output_len)
        loop_requests = requests(self._prompts, lengths, count, seed)
        with self._bars.bar(name, count) as done:
            ended = await closed_loop(self._target, loop_requests, concurrency, _RUN_SECONDS, done)
        summary = summarise(ended)
        if summary.successful < count:
            errors = "; ".join(summary.errors) or f"not all were sent within {_RUN_SECONDS:.0f} s"
            raise Unavailable(f"{name}: {count - summary.successful} of {count} failed: {errors}")
        return summary
