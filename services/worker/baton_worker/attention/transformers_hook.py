"""Our paged attention as an attention function for transformers models.

A model of transformers that accepts the plug-in calls `attend` once per attention layer instead of
its own attention, with queries and keys that are normed and rotated already. The active handler
takes the call: a `CallRecorder` records the kind of attention and computes it densely; a
`PagedHandler` writes keys and values to the layer's pages and calls a backend.

    transformers layer  ->  attend(query, key, value, ...)  ->  pages[n], backend of call n

Calls are identified by their order, which is the same in every forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton.errors import ModelError
from baton_worker.attention.attention_batch import AttentionBatch
from baton_worker.attention.attention_spec import AttentionSpec
from baton_worker.attention.selector import AttentionSelector
from baton_worker.kernels.kv_pages import put
from baton_worker.kernels.page_layout import Layout

NAME = "baton"
"""The name under which the plug-in is registered with transformers."""
_IGNORED = {
    "cache_position",
    "cu_seq_lens_k",
    "cu_seq_lens_q",
    "is_causal",
    "max_length_k",
    "max_length_q",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "position_embeddings",
    "position_ids",
    "return_dict",
    "use_cache",
}
"""Arguments that models pass to every attention function and that do not change attention."""


class AttentionHandler(Protocol):
    """Computes the attention calls of one forward pass."""

    layout: Layout
    """Of the pages."""

    def forward(
        self, call: AttentionSpec, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None
    ) -> Tensor:
        """Attention of query [T, heads, dim], key [T, kv_heads, dim], value [T, kv_heads,
        value_dim]: [T, heads, value_dim]. `sinks` is [heads] where the call has them."""
        ...


_HANDLER: ContextVar[AttentionHandler] = ContextVar("attention_handler")


@contextmanager
def attention_handler(handler: AttentionHandler) -> Iterator[None]:
    """Attention calls within this block go to `handler`."""
    token = _HANDLER.set(handler)
    try:
        yield
    finally:
        _HANDLER.reset(token)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention function with the signature of transformers: [1, heads, T, dim] each, to [1, T,
    heads, dim]. `s_aux` is what transformers calls the sinks, [heads].

    Raises:
        ModelError: the layer needs something that paged attention does not support.
    """
    _refuse_unsupported(module, attention_mask, others)
    queries, keys, values = (heads[0].transpose(0, 1).contiguous() for heads in (query, key, value))
    handler = _HANDLER.get()
    call = AttentionSpec(
        num_heads=query.shape[1],
        num_kv_heads=key.shape[1],
        head_dim=query.shape[3],
        scale=query.shape[3] ** -0.5 if scaling is None else float(scaling),
        window=sliding_window,
        dtype=query.dtype,
        device=query.device,
        softcap=softcap,
        sinks=s_aux is not None,
        layout=handler.layout,
    )
    sinks = None if s_aux is None else s_aux.to(query.dtype)
    return handler.forward(call, queries, keys, values, sinks)[None], None


def _refuse_unsupported(module: nn.Module, mask: Tensor | None, others: Mapping[str, Any]) -> None:
    arguments = {name: value for name, value in others.items() if name not in _IGNORED}
    unsupported = {name for name, value in arguments.items() if isinstance(value, Tensor) or value}
    causal = others.get("is_causal") is not False and getattr(module, "is_causal", True)
    if mask is not None:
        unsupported.add("a mask of its own")
    if not causal:
        unsupported.add("attention to later tokens")
    if unsupported:
        raise ModelError(
            f"{type(module).__name__} asks for {', '.join(sorted(unsupported))}, "
            "which paged attention does not do."
        )


@dataclass
class CallRecorder:
    """Records the calls of one pass over one sequence, and computes them without pages."""

    layout: Layout = Layout.NHD
    calls: list[AttentionSpec] = field(default_factory=list)
    value_dims: list[int] = field(default_factory=list)

    def forward(
        self, call: AttentionSpec, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None
    ) -> Tensor:
        """See `AttentionHandler.forward`; only the shape of the result matters."""
        self.calls.append(call)
        self.value_dims.append(value.shape[2])
        if value.shape[2] > call.head_dim:
            raise ModelError("Its values have more channels than its keys, so no page holds both.")
        group = call.num_heads // call.num_kv_heads
        heads = (query, *(x.repeat_interleave(group, dim=1) for x in (key, value)))
        q, k, v = (x.transpose(0, 1) for x in heads)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return attended.transpose(0, 1).contiguous()


class PagedHandler:
    """One step over the pages: call n belongs to `layers[n]`, in page group `groups[n]`."""

    def __init__(
        self,
        batch: AttentionBatch,
        calls: Sequence[AttentionSpec],
        layers: Sequence[Tensor],
        groups: Sequence[int],
        selector: AttentionSelector,
    ) -> None:
        self._batch, self._layers, self._groups = batch, layers, groups
        self._select = selector.select
        self.layout = calls[0].layout
        kinds = dict.fromkeys(zip(groups, calls, strict=True))
        self._plans = {
            kind: self._select(kind[1]).plan(batch.of(kind[0]), kind[1]) for kind in kinds
        }
        self.num_calls = 0
        """Attention calls so far."""

    def forward(
        self, call: AttentionSpec, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None
    ) -> Tensor:
        """See `AttentionHandler.forward`."""
        pages, group = self._layers[self.num_calls], self._groups[self.num_calls]
        self.num_calls += 1
        width = value.shape[2]
        padded = F.pad(value, (0, call.head_dim - width)) if width < call.head_dim else value
        slots = self._batch.of(group).slot_mapping
        put(torch.cat((key, padded), dim=1), slots, pages, call.codes)
        attended = self._select(call).forward(self._plans[group, call], query, pages, sinks)
        return attended.view(query.shape)[..., :width].contiguous()
