"""Measures step costs by number of new tokens, for speculative decoding.

The steps are those of speculation: rows with drafts behind them, every position sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from baton.protocol import NewSequence, Plan, Result, Sampling
from baton.protocol.token_columns import pack
from baton_worker.engine.batch.draft_tokens import DraftOptions
from baton_worker.engine.engine_config import EngineConfig
from baton_worker.speculative.proposer import DraftRequest, DraftSampler, Proposer, Tokens

DRAFTS = 7
"""Most drafts of a row that is timed."""
_TOKENS = (1, 2, 3, 4, 6, 8, 16, 32, 64)
"""New tokens of the steps; those of more rows than one have `DRAFTS` + 1 of each."""
_AGAIN = tuple(tokens for tokens in _TOKENS if tokens <= DRAFTS + 1)
"""New tokens of the steps whose differences decide about drafts: they are timed in three rounds,
since other work on the machine at one moment would bias the costs of drafts."""
_TIMES = 4
"""Steps of each number; the fastest counts, and the first one initialises kernels for its shape."""
_PROMPT = 8


class Repeating(Proposer):
    """A proposer of as many drafts as there may be."""

    def propose(self, requests: Sequence[DraftRequest], sampler: DraftSampler) -> list[Tokens]:
        """See `Proposer`."""
        return [np.zeros(request.most, np.int32) for request in requests]


OPTIONS = DraftOptions(Repeating(), DRAFTS)
"""Options of speculation for the batch whose steps are measured."""


def measure(step: Callable[[Plan], Result], resolved: EngineConfig) -> dict[int, float]:
    """Seconds by number of new tokens, of as many numbers as an empty batch has room for.

    Args:
        step: runs a plan on a batch with `OPTIONS`.
    """
    seconds, number = dict[int, float](), 0
    for tokens in (*_TOKENS, *_AGAIN, *_AGAIN):
        rows = -(-tokens // (DRAFTS + 1))
        if not _fits(resolved, rows):
            continue
        for plan in _plans(resolved, number, rows, tokens // rows - 1):
            result, number = step(plan), number + 1
            if plan.rows and not plan.new_sequences:
                took = result.duration_us / 1e6
                seconds[tokens] = min(took, seconds.get(tokens, took))
    return seconds


def _fits(resolved: EngineConfig, rows: int) -> bool:
    pages = rows * _pages(resolved) * len(resolved.groups.windows)
    length = _PROMPT + (_TIMES + 1) * (DRAFTS + 1)
    return (
        rows <= resolved.max_num_seqs
        and pages <= resolved.num_pages
        and length <= resolved.max_model_len
        and rows * max(_PROMPT, DRAFTS + 1) <= resolved.max_num_batched_tokens
    )


def _pages(resolved: EngineConfig) -> int:
    return -(-(_PROMPT + (_TIMES + 1) * (DRAFTS + 1)) // resolved.page_size)


def _plans(resolved: EngineConfig, first: int, rows: int, drafts: int) -> Iterator[Plan]:
    """Prompts, then steps with so many drafts for each row, then nothing is left."""
    groups, pages = len(resolved.groups.windows), _pages(resolved)
    sampling = Sampling((_TIMES + 1) * (DRAFTS + 1), temperature=0.0, num_speculative_tokens=drafts)
    tokens, slots = pack([0] * _PROMPT), pack(range(rows), "I")
    yield Plan(
        epoch=0,
        step=first,
        rows=slots,
        num_computed=pack([0] * rows, "I"),
        num_scheduled=pack([_PROMPT] * rows, "I"),
        samples=bytes([1] * rows),
        new_sequences=tuple(NewSequence(s, tokens, _PROMPT, sampling) for s in range(rows)),
        page_rows=pack([*range(rows)] * groups, "I"),
        page_counts=pack([pages] * rows * groups, "I"),
        pages=pack(range(rows * pages * groups), "I"),
        page_groups=bytes(group for group in range(groups) for _ in range(rows)),
    )
    for number in range(1, _TIMES + 1):
        # The batch adds the accepted drafts to the lengths of a plan.
        where, ones = pack([_PROMPT + number - 1] * rows, "I"), pack([1] * rows, "I")
        samples = bytes([1] * rows)
        yield Plan(0, first + number, slots, where, ones, samples)
    yield Plan(0, first + _TIMES + 1, b"", b"", b"", b"", release=slots)
