"""Rows of logits that a step computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from baton_worker.engine.batch.plan_columns import Column


@dataclass(frozen=True, slots=True)
class LogitsRows:
    """Rows of logits of a step, as parallel columns [L]. Each samples a token; a slot with drafts
    has several rows, in the order of its tokens."""

    indices: Column
    """Index of its hidden state on the flat token axis: vLLM's `logits_indices`."""
    slots: Column
    lengths: Column
    """Tokens of its sequence up to there: those that penalties, rules and grammars look at."""
    index: Column
    """Position of the sampled token in the log of its sequence."""
    drafts: Column | None = None
    """The token that is put behind its own, for the next row of its slot to be sampled from; -1 if
    none is. None: no row has one, and each is of another slot."""

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def first(self) -> npt.NDArray[np.bool_]:
        """bool [L]: the first row of each slot."""
        first = np.ones(len(self), np.bool_)
        if self.drafts is not None:
            np.not_equal(self.slots[1:], self.slots[:-1], out=first[1:])
        return first

    @property
    def drafted(self) -> Column:
        """The slots of rows that have a draft."""
        return self.slots[:0] if self.drafts is None else self.slots[self.drafts >= 0]

    def take(self, chosen: npt.NDArray[np.bool_]) -> LogitsRows:
        """The rows where `chosen` holds."""
        if np.count_nonzero(chosen) == len(self):
            return self
        return LogitsRows(
            self.indices[chosen],
            self.slots[chosen],
            self.lengths[chosen],
            self.index[chosen],
            None if self.drafts is None else self.drafts[chosen],
        )
