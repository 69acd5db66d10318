"""Sequences that arrive at a worker."""

from __future__ import annotations

from baton.protocol import Sampling, Submit
from baton.protocol.token_columns import pack
from baton_scheduler.queueing.queue import fcfs
from baton_scheduler.sequence import Sequence, sequence


def arrive(length: int = 4, number: int = 1, max_tokens: int = 4, adapter: bytes = b"") -> Sequence:
    """A sequence whose prompt no other one shares."""
    prompt = pack(range(1000 * number, 1000 * number + length))
    submit = Submit(number, "r", prompt, Sampling(max_tokens), adapter=adapter)
    return sequence("g", submit, "", number, 0.0, fcfs)
