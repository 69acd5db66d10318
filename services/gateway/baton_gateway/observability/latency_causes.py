"""Causes of latency: the list of them, which party is responsible, and how the scheduler's phases
split one.

receive -> admission -> encode -> engine ----------------------> detokenise -> respond, client
                                    |
                                    transport, queue, prefill, decode, ... (from the scheduler)
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from baton.protocol import PhaseTimes

Cause: TypeAlias = Literal[
    "receive",
    "admission",
    "grammar",
    "encode",
    "beam_search",
    "engine",
    "no_scheduler",
    "detokenise",
    "respond",
]
"""Causes that the gateway measures:

receive       the body was read and checked
admission     it waited for a worker, a tokenizer or the limits of its key
grammar       its grammar was compiled
encode        a tokenizer rendered and encoded the prompts
beam_search   all steps of a beam search
engine        it was with the scheduler
no_scheduler  it waited for a scheduler to become available
detokenise    all tokens had arrived, and a tokenizer decoded the last of them
respond       all text had arrived, and the response was written
"""

SERVICES = {
    "receive": "gateway",
    "admission": "gateway",
    "grammar": "gateway",
    "encode": "tokenizer",
    "beam_search": "scheduler",
    "no_scheduler": "scheduler",
    "transport": "network",
    "queue": "scheduler",
    "prefill": "worker",
    "handover": "worker",
    "decode": "worker",
    "preempted": "scheduler",
    "worker_loss": "worker",
    "engine": "scheduler",
    "detokenise": "tokenizer",
    "respond": "gateway",
    "client": "client",
}
"""Service responsible for each cause, in display order."""

PHASES = {
    "queue": "queued",
    "prefill": "prefill",
    "handover": "handover",
    "decode": "decode",
    "preempted": "preempted",
    "worker_loss": "worker_loss",
}
"""Causes that the scheduler reports, with their fields of `PhaseTimes`."""
_TRIMMED = ("decode", "preempted", "worker_loss", "handover", "prefill", "queue")
"""Phases that are shortened, in this order, by scheduler time after the response was complete."""


def split_engine(times: PhaseTimes, engine: float) -> dict[str, float]:
    """Split the time under "engine" into the scheduler's phases and transport."""
    seconds = {cause: getattr(times, field) for cause, field in PHASES.items()}
    rest = engine - sum(seconds.values())
    for cause in _TRIMMED:
        if rest >= 0:
            break
        less = min(seconds[cause], -rest)
        seconds[cause] -= less
        rest += less
    always = ("queue", "prefill", "decode")
    return {c: s for c, s in seconds.items() if s or c in always} | {"transport": max(0.0, rest)}


def lifetime(times: PhaseTimes) -> float:
    """Return the seconds from the arrival of a choice to its end."""
    return float(sum(getattr(times, field) for field in PHASES.values()))
