"""A scheduler small enough to read at once: drives an engine or a runner with real plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from baton.protocol import NewSequence, Plan, PromptLogprobs, Result, Sampling
from baton.protocol.token_columns import pack, unpack


class Steps(Protocol):
    """What can run a plan."""

    def step(self, plan: Plan) -> Result: ...


@dataclass
class Sequence:
    """One sequence as the planner sees it."""

    prompt: list[int]
    sampling: Sampling
    log: list[int] = field(default_factory=list)
    computed: int = 0
    slot: int = -1
    pages: list[int] = field(default_factory=list)
    finish: str = ""
    failure: str = ""
    chosen: list[float] = field(default_factory=list)
    """Log-probability of each sampled token, when asked for."""
    ranks: list[int] = field(default_factory=list)
    tops: list[list[tuple[int, float]]] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)

    @property
    def known(self) -> int:
        """Tokens of prompt and log."""
        return len(self.prompt) + len(self.log)

    @property
    def over(self) -> bool:
        """No further step is wanted."""
        return bool(self.finish or self.failure) or len(self.log) >= self.sampling.max_tokens


@dataclass
class Planner:
    """Plans one step at a time, everything it holds, prefill in chunks."""

    target: Steps
    num_pages: int = 256
    page_size: int = 16
    chunk: int = 10_000
    groups: int = 1
    """Page groups of the target's layers; a sequence has as many pages of each."""
    epoch: int = 0
    steps: int = 0
    running: dict[int, Sequence] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._free = list(range(self.num_pages))[::-1]
        self._entering: list[NewSequence] = []
        self._leaving: list[int] = []

    def add(self, sequence: Sequence) -> Sequence:
        """Let a sequence join, fresh or with the log it has."""
        sequence.slot = next(s for s in range(1000) if s not in self.running)
        sequence.computed, sequence.pages = 0, []
        self.running[sequence.slot] = sequence
        tokens = pack(sequence.prompt + sequence.log)
        new = NewSequence(sequence.slot, tokens, len(sequence.prompt), sequence.sampling)
        self._entering.append(new)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Let a sequence leave: it is over, or preempted."""
        del self.running[sequence.slot]
        self._leaving.append(sequence.slot)
        self._free += sequence.pages

    def step(self) -> Result:
        """Plan, run, settle."""
        plan = self.plan()
        result = self.target.step(plan)
        self.settle(result)
        return result

    def finish(self) -> None:
        """Step until nothing runs."""
        while self.running:
            self.step()

    def plan(self) -> Plan:
        """One row per running sequence; `settle` must follow."""
        rows = list(self.running.values())
        counts = [min(s.known - s.computed, self.chunk) for s in rows]
        starts = [s.computed for s in rows]
        fresh = [list(self._pages(s, c)) for s, c in zip(rows, counts, strict=True)]
        for sequence, count in zip(rows, counts, strict=True):
            sequence.computed += count
        self.steps, groups = self.steps + 1, range(self.groups)
        plan = Plan(
            epoch=self.epoch,
            step=self.steps,
            rows=pack((s.slot for s in rows), "I"),
            num_computed=pack(starts, "I"),
            num_scheduled=pack(counts, "I"),
            samples=pack((s.computed == s.known for s in rows), "B"),
            release=pack(self._leaving, "I"),
            new_sequences=tuple(self._entering),
            page_rows=pack([s.slot for s in rows] * self.groups, "I"),
            page_counts=pack([len(pages) // self.groups for pages in fresh] * self.groups, "I"),
            pages=pack(
                (n for g in groups for pages in fresh for n in pages[g :: self.groups]), "I"
            ),
            page_groups=bytes(g for g in groups for _ in rows) if self.groups > 1 else b"",
        )
        self._entering, self._leaving = [], []
        return plan

    def _pages(self, sequence: Sequence, count: int) -> Iterator[int]:
        while len(sequence.pages) // self.groups * self.page_size < sequence.computed + count:
            fresh = [self._free.pop() for _ in range(self.groups)]
            sequence.pages += fresh
            yield from fresh

    def settle(self, result: Result) -> None:
        """Take the tokens in; what is over leaves."""
        counts, tokens = unpack(result.counts, "B"), iter(unpack(result.tokens))
        rows = zip(unpack(result.rows, "I"), unpack(result.first, "I"), counts, strict=True)
        slots = []
        for slot, first, count in rows:
            sequence = self.running[slot]
            assert first == len(sequence.log) and count > 0
            sequence.log += [next(tokens) for _ in range(count)]
            sequence.computed = sequence.known - 1
            slots += [slot] * count
        for part in result.prompt_logprobs:
            self.running[part.slot].prompt_logprobs.append(part)
        if result.logprobs is not None:
            self._describe(result, slots)
        for slot, reason in result.finished.items():
            self.running[slot].finish = reason
        for slot, reason in result.failed.items():
            self.running[slot].failure = reason
        for sequence in [s for s in self.running.values() if s.over]:
            self.remove(sequence)

    def _describe(self, result: Result, slots: list[int]) -> None:
        assert result.logprobs is not None
        for row, chosen, rank, top in sorted(entries(result.logprobs)):
            sequence = self.running[slots[row]]
            sequence.chosen.append(chosen)
            sequence.ranks.append(rank)
            sequence.tops.append(top)


def entries(logprobs: object) -> Iterator[tuple[int, float, int, list[tuple[int, float]]]]:
    """(row, log-probability, rank, alternatives) of each entry of a `Logprobs`."""
    from baton.protocol import Logprobs
    from baton.protocol.token_columns import unpack_floats

    assert isinstance(logprobs, Logprobs)
    tops = zip(unpack(logprobs.top_ids), unpack_floats(logprobs.top_values), strict=True)
    columns = (unpack(logprobs.rows, "I"), unpack_floats(logprobs.chosen))
    rest = (unpack(logprobs.ranks, "I"), unpack(logprobs.counts, "B"))
    for row, chosen, rank, count in zip(*columns, *rest, strict=True):
        yield row, chosen, rank, [next(tops) for _ in range(count)]
    assert next(tops, None) is None


def run_all(planner: Planner, sequences: Iterable[Sequence]) -> list[list[int]]:
    """Run sequences together to their ends; their logs."""
    added = [planner.add(sequence) for sequence in sequences]
    planner.finish()
    return [sequence.log for sequence in added]
