"""Per-sequence token rules: allowed ids, bad words, processors.

Few sequences have rules, so they are stored by slot at no cost to the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton.protocol import Sampling
from baton_worker.sampling.bad_words import BadWords
from baton_worker.sampling.logits_processors import Log, parse, process
from baton_worker.sampling.penalties import Entries


@dataclass(frozen=True, slots=True)
class TokenRule:
    """The rules of one sequence."""

    allowed: npt.NDArray[np.int64]
    """The only allowed ids; empty means all."""
    words: BadWords | None
    processors: dict[str, Any] = field(default_factory=dict)
    """Arguments by processor name."""

    @classmethod
    def of(cls, sampling: Sampling) -> TokenRule | None:
        """The rules of a sequence, or None if it has none.

        Raises `SettingsError` for a processor that this worker does not have.
        """
        if not (sampling.allowed_ids or sampling.bad_words or sampling.processors):
            return None
        return cls(
            np.unique(np.array(sampling.allowed_ids, np.int64)),
            BadWords.of(sampling.bad_words) if sampling.bad_words else None,
            parse(sampling.processors),
        )


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The rules of a batch's rows that have any, in parallel lists."""

    rows: Sequence[int]
    rules: Sequence[TokenRule]
    logs: Sequence[Log]
    """Generated tokens of each row."""

    def apply(self, logits: Tensor) -> None:
        """Apply in place, [R, V]: processors first, so that they cannot restore a forbidden
        token."""
        self._process(logits)
        self._allow(logits)
        self._forbid(logits)

    def _process(self, logits: Tensor) -> None:
        users = [i for i, rule in enumerate(self.rules) if rule.processors]
        if users:
            names = [self.rules[i].processors for i in users]
            process(logits, names, [self.logs[i] for i in users], [self.rows[i] for i in users])

    def _allow(self, logits: Tensor) -> None:
        pairs = [
            (row, rule.allowed)
            for row, rule in zip(self.rows, self.rules, strict=True)
            if len(rule.allowed)
        ]
        if pairs:
            which = torch.tensor([row for row, _ in pairs], device=logits.device)
            rows, ids = (torch.from_numpy(column).to(logits.device) for column in _spread(pairs))
            allowed = logits[rows, ids]
            logits.index_fill_(0, which, -torch.inf)
            logits[rows, ids] = allowed

    def _forbid(self, logits: Tensor) -> None:
        pairs = [
            (row, rule.words.after(log))
            for row, rule, log in zip(self.rows, self.rules, self.logs, strict=True)
            if rule.words is not None
        ]
        if pairs:
            rows, ids = _spread(pairs)
            Entries(rows, ids, np.full(len(ids), -np.inf, np.float32)).add(logits)


def _spread(
    pairs: Sequence[tuple[int, npt.NDArray[np.int64]]],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows and the ids of each, as two parallel columns."""
    rows = np.repeat([row for row, _ in pairs], [len(ids) for _, ids in pairs])
    return rows.astype(np.int64), np.concatenate([ids for _, ids in pairs])
