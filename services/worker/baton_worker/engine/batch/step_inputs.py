"""Inputs of one step: its tokens, and the outputs that are wanted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from baton.protocol import Pooling
from baton_worker.engine.batch.batch_rows import BatchRows
from baton_worker.engine.batch.block_tables import BlockTables
from baton_worker.engine.batch.logits_rows import LogitsRows
from baton_worker.engine.batch.plan_columns import Column
from baton_worker.engine.multimodal.pixels import Pixels
from baton_worker.engine.multimodal_input import MediaRows, SeenMedia
from baton_worker.layers.media_embeddings import MediaEmbeddings


class PromptSpan(NamedTuple):
    """Prompt tokens of a step whose log-probabilities are wanted."""

    slot: int
    start: int
    """Position of the first of them in the prompt."""
    first: int
    """Index of the token before it on the flat token axis, whose hidden state predicts it."""
    tokens: npt.NDArray[np.int32]
    num_logprobs: int
    """Most probable tokens wanted beside each."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One ragged step of B rows and T tokens, on the host. The batch does not change until the
    outputs are committed."""

    rows: BatchRows
    tokens: Column
    """int64 [T], row after row."""
    positions: Column
    """int64 [T], their positions in their sequences, by depth in a tree; [axes, T] for models whose
    tokens have several each."""
    lengths: Column
    """int64 [B]: tokens of each sequence that are known, forced and drafted ones included."""
    logits: LogitsRows
    """Rows of logits: one for each slot that samples, and one for each of its drafts."""
    tables: BlockTables
    forced: Column
    """int64 [slots], by slot: how many of its new tokens, the last ones, its grammar forces: they
    are not in its log yet, and will be."""
    prompt_spans: tuple[PromptSpan, ...] = ()
    pooling: dict[int, Pooling] = field(default_factory=dict)
    """By slot: whether the request is for a vector and not for tokens."""
    images: dict[int, Pixels] = field(default_factory=dict)
    """By slot: the image of a sequence that is an image and no text."""
    adapters: Column | None = None
    """int64 [T]: number of each token's adapter, -1 for none; None where none are served."""
    media: tuple[MediaRows, ...] = ()
    """Media whose embeddings replace placeholders among the tokens."""
    seen: tuple[SeenMedia, ...] = ()
    """Media that the tokens attend to, in models with cross-attention."""
    embeddings: MediaEmbeddings | None = None
    """The embeddings; None: there are no placeholders."""
    last_keys: Column | None = None
    """int64 [T]: the last position that each token sees; None: its own."""
    trees: dict[int, Column] = field(default_factory=dict)
    """By slot: the parent of each token of its row, where the drafts are a tree. See
    `DraftTokens.trees`."""
    failed: dict[int, str] = field(default_factory=dict)
    """By slot: why a sequence that was to enter cannot run."""
    stalled: Column = field(default_factory=lambda: np.zeros(0, np.int64))
    """Slots that wait in this step: they have run ahead to the end of their pages."""

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, chosen: npt.NDArray[np.bool_]) -> StepInputs:
        """The rows where `chosen` holds, as inputs of a separate forward pass without logits."""
        tokens = np.repeat(chosen, self.rows.counts)
        return replace(
            self,
            rows=self.rows.take(chosen),
            tokens=self.tokens[tokens],
            positions=self.positions[..., tokens],
            lengths=self.lengths[chosen],
            logits=self.logits.take(np.zeros(len(self.logits), np.bool_)),
            prompt_spans=(),
            adapters=None if self.adapters is None else self.adapters[tokens],
            media=(),
            seen=(),
            last_keys=None if self.last_keys is None else self.last_keys[tokens],
            embeddings=None if self.embeddings is None else self.embeddings.take(tokens),
        )
