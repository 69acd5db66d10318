"""Custom logits processors, registered by name.

A processor is called once per step with all rows that use it. It changes logits in place and may
depend only on the given tokens: a migrated sequence must get the same logits. A package adds one
through the entry-point group `baton.processors`, and its argument check through
`baton.processor_arguments`, which the gateway calls before forwarding a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton.registry import Registry

PROCESSORS = Registry(
    "processors",
    {
        "no_repeat_ngram": "baton_worker.sampling.logits_processors:no_repeat_ngram",
        "transcript": "baton_worker.sampling.transcripts:transcript",
    },
)

Log = npt.NDArray[np.int32]


class Processor(Protocol):
    """The interface of a logits processor."""

    def __call__(self, logits: Tensor, logs: Sequence[Log], arguments: Sequence[Any]) -> None:
        """Change `logits` float32 [N, V] in place.

        Args:
            logits: one row per sequence; -inf forbids a token.
            logs: generated tokens of each sequence, without its prompt.
            arguments: arguments of each request, as plain JSON values.
        """


def parse(processors: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of one sequence, by name. Raises `SettingsError` for an unknown name."""
    return {PROCESSORS.check(name): msgspec.json.decode(text) for name, text in processors.items()}


def process(
    logits: Tensor, names: Sequence[Mapping[str, Any]], logs: Sequence[Log], rows: Sequence[int]
) -> None:
    """Apply every named processor to its rows, in the order of the registry.

    Args:
        logits: float32 [R, V].
        names: for each of `rows`, its processors and their arguments.
        logs: for each of `rows`, its generated tokens.
        rows: rows of `logits` that use a processor.
    """
    for name in PROCESSORS.names():
        users = [i for i, used in enumerate(names) if name in used]
        if users:
            where = torch.tensor([rows[i] for i in users], device=logits.device)
            part = logits.index_select(0, where)
            processor: Processor = PROCESSORS.load(name)
            processor(part, [logs[i] for i in users], [names[i][name] for i in users])
            logits.index_copy_(0, where, part)


def no_repeat_ngram(logits: Tensor, logs: Sequence[Log], arguments: Sequence[Any]) -> None:
    """Forbid repetition of any `{"size": n}` consecutive tokens in the output of a sequence."""
    for row, log, argument in zip(logits, logs, arguments, strict=True):
        size = argument["size"]
        if len(log) >= size:
            windows = np.lib.stride_tricks.sliding_window_view(log, size)
            repeats = (windows[:, :-1] == log[len(log) - size + 1 :]).all(1)
            row[torch.from_numpy(windows[repeats, -1].astype(np.int64)).to(row.device)] = -torch.inf
