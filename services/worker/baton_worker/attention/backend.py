"""The contract of an attention backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from baton_worker.attention.attention_batch import AttentionBatch
from baton_worker.attention.attention_spec import AttentionSpec
from baton_worker.kernels.page_layout import Layout


@runtime_checkable
class RefreshedPlan(Protocol):
    """A plan of a captured step that the host has to make anew before each replay."""

    def refresh(self, lengths: Sequence[int]) -> None:
        """Plan for rows of these lengths, new tokens included, at most those of the capture; the
        tensors of its batch have the contents of the step. Queued on the current stream."""
        ...


@runtime_checkable
class DevicePlan(Protocol):
    """A plan that the device makes in each step, of the tensors of its batch."""

    def compute(self) -> Any:
        """Queue its making; returns what the layers of its kind read. Within a capture it is a part
        of the step."""
        ...


class Backend(Protocol):
    """One way to compute paged attention. Life cycle: `refuses` is called once per kind of layer
    while the model is built; then, in each step, `plan` runs once per kind of layer and `forward`
    once per layer with that plan. The step's keys and values are in the pages before `forward`.
    """

    layouts: frozenset[Layout]
    """The layouts of pages that it reads in place; a selector offers it no others."""
    capture_blocker: str | None
    """Why its decode steps cannot be captured (see `graphs`), as half a sentence; None if they can:
    then a plan for rows of one new token each serves any such step of as many rows that are not
    longer, in the memory of the same batch; `forward` waits for nothing; and neither reads entries
    of a block table beyond the keys of a row. Plans of a `captured` batch may be
    `RefreshedPlan`."""
    launch_blocker: str | None
    """Why a step must not be launched before the one before it has been read, as half a sentence;
    None if it may. Without either blocker, `plan` does not wait for the device, and the device work
    that it queues for `captured` rows, one with several new tokens, is valid for every step of as
    many rows (empty ones included) and tokens."""

    def refuses(self, call: AttentionSpec) -> str | None:
        """Why this backend cannot serve such layers, as half a sentence; None if it can."""
        ...

    def plan(self, batch: AttentionBatch, call: AttentionSpec) -> Any:
        """Prepare what all layers of one kind share in this step: masks, indices."""
        ...

    def forward(
        self,
        plan: Any,
        query: Tensor,
        pages: Tensor,
        sinks: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            plan: what `plan` returned.
            query: [T, num_heads, head_dim], rotated, any row stride.
            pages: [num_pages, page_size, 2, num_kv_heads, head_dim], keys and values. For a
                `latent` call the third axis is 1; where values have a width of their own as well,
                and the last holds a key and then a value. With `most_keys` a view of its first
                channels. With `codes` uint8, and in place of each
                width its `row_width`. In memory they lie as the call's `layout` says, and the
                strides with them.
            sinks: [num_heads] where the call has `sinks`, [T, num_heads] where it has
                `token_sinks`, else None.
            lse: float32 [T, num_heads], contiguous; filled, where the call is `partial`, with the
                logarithm of the sum of the exponentials of what a head's softmax has seen, sinks
                included: see `attention.lse_merge`.

        Returns:
            [T, num_heads * width]; zeros for a token whose range of keys is empty.
        """
        ...


def fits(batch: AttentionBatch, call: AttentionSpec) -> bool:
    """True if layers of this kind support the row features of a step."""
    understood = (call.partial, call.tree, call.spans)
    features = (batch.ranges, batch.trees, batch.last_keys)
    return all(yes or value is None for yes, value in zip(understood, features, strict=True))
