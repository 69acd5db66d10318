"""Requirements of one kind of layer on an attention backend."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import MISSING, dataclass, fields

import torch

from baton_worker.kernels.kv_codes import KVCodes
from baton_worker.kernels.page_layout import Layout


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Static parameters of one layer's attention, which a backend accepts or refuses.

    A score is scale * q.k, bent into (-softcap, softcap), plus slopes[head] * (key's position -
    query's position); then the mask: the last `window` tokens, and of those, with a `chunk`, the
    ones in the query's own chunk of so many positions. With `sinks` or `token_sinks`, one more
    score per head, or per token and head, takes part in the softmax and has no value.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    dtype: torch.dtype
    device: torch.device
    softcap: float | None = None
    slopes: tuple[float, ...] | None = None
    """ALiBi: one per query head."""
    chunk: int | None = None
    sinks: bool = False
    token_sinks: bool = False
    latent: bool = False
    """Keys serve as values: a page holds one vector per token and key head, not two."""
    value_dim: int | None = None
    """Channels of a value where they are not `head_dim`: a page holds a key and behind it a value
    per token and key head; of `latent` keys the first so many are the value."""
    partial: bool = False
    """Results will be merged with others: `forward` returns the log-sum-exp of the scores, and rows
    may see a range of keys only."""
    tree: bool = False
    """The new tokens of a row may be a tree."""
    spans: bool = False
    """New tokens may see later ones of their row, see `AttentionBatch.last_keys`."""
    codes: KVCodes | None = None
    """Quantised format of the pages, in place of `dtype`."""
    layout: Layout = Layout.NHD
    """The order of the numbers in a page."""
    most_keys: int | None = None
    """An indexer selects so many of the `latent` keys that a token sees (see
    `layers.attention.sparse_plan`): each of them is then a page of its own, and a page holds the
    index key of a token behind its key."""
    context: tuple[int, int] | None = None
    """(rank, size) where each of several ranks keeps every `size`th token, the first of them at
    position `rank`: what `attention.context_parallel` understands."""

    @property
    def width(self) -> int:
        """Channels of a value and of a head's output."""
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.num_heads // self.num_kv_heads

    def __str__(self) -> str:
        """One phrase for a log line."""
        keys = "all tokens" if self.window is None else f"the last {self.window} tokens"
        kind = f"{self.num_heads} query and {self.num_kv_heads} key heads of {self.head_dim}"
        kind += f", values of {self.value_dim}" if self.value_dim is not None else ""
        kind += ", soft-capped" if self.softcap else ""
        kind += ", with ALiBi" if self.slopes else ""
        kind += ", keys as values" if self.latent else ""
        kind += ", with sinks" if self.sinks or self.token_sinks else ""
        kind += f", at most {self.most_keys} of them" if self.most_keys else ""
        kind += ", in parts" if self.partial else ""
        kind += f", every {self.context[1]}th key" if self.context else ""
        kind += ", over trees" if self.tree else ""
        kind += ", both ways within images" if self.spans else ""
        storage = (
            f"{self.codes or ''} {self.layout if self.layout is not Layout.NHD else ''}".strip()
        )
        kind += f", {storage} pages" if storage else ""
        keys += f" in chunks of {self.chunk}" if self.chunk else ""
        return f"{kind} over {keys}, {str(self.dtype).removeprefix('torch.')} on {self.device}"


_EVERYBODYS = {"layout", *(f.name for f in fields(AttentionSpec) if f.default is MISSING)}
"""Fields that no backend can leave unread; for layouts there is `Backend.layouts`."""


def unknown(call: AttentionSpec, understood: Collection[str]) -> str | None:
    """Required features that are neither in `_EVERYBODYS` nor `understood`, as half a sentence."""
    others = [f for f in fields(call) if f.name not in _EVERYBODYS and f.name not in understood]
    strange = [f.name for f in others if getattr(call, f.name) != f.default]
    return f"it does not know {', '.join(strange)}" if strange else None
