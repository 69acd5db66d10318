"""The rules of Whisper's transcripts (Radford et al. 2022, arXiv:2212.04356, section 4.5): which
tokens are never written, and where timestamps may stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from baton_worker.sampling.logits_processors import Log


def transcript(logits: Tensor, logs: Sequence[Log], arguments: Sequence[Any]) -> None:
    """A logits processor, see `logits_processors.Processor`.

    Its argument has ids that are `suppressed` everywhere and `suppressed_first`, and, where the
    output is to have timestamps, the `first_timestamp`, the `end` of a text and a
    `max_first_timestamp`, counted from the first one; -1 for any.
    """
    for row, log, argument in zip(logits, logs, arguments, strict=True):
        row[argument["suppressed"]] = -torch.inf
        if not len(log):
            row[argument["suppressed_first"]] = -torch.inf
        if "first_timestamp" in argument:
            _keep_order(row, log, argument)
            _prefer_timestamp(row, argument["first_timestamp"])


def _keep_order(row: Tensor, log: Log, argument: Mapping[str, Any]) -> None:
    """Timestamps come in pairs, but for the one before the end; they never decrease; a text begins
    with one."""
    first = argument["first_timestamp"]
    row[first - 1] = -torch.inf  # <|notimestamps|>
    if not len(log):
        row[:first] = -torch.inf
        if (most := argument["max_first_timestamp"]) >= 0:
            row[first + most + 1 :] = -torch.inf
        return
    last, before = log[-1] >= first, len(log) < 2 or log[-2] >= first
    if last and before:
        row[first:] = -torch.inf
    elif last:
        row[: argument["end"]] = -torch.inf
    times = log[log >= first]
    if len(times):
        row[first : int(times[-1]) + (not last or before)] = -torch.inf


def _prefer_timestamp(row: Tensor, first: int) -> None:
    """Write a timestamp where all of them together are more probable than any other token."""
    if row[first:].logsumexp(0) > row[:first].max():
        row[:first] = -torch.inf
