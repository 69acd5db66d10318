"""The attention layer: projections, head norms, rotation, cache, backend, output."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.attention import AttentionSpec
from baton_worker.kernels.kv_pages import put
from baton_worker.kernels.rope import CpuHeads, HeadNorm, Norms, refuses
from baton_worker.kernels.triton import runs
from baton_worker.layers.attention.encoder_attention import EncoderAttention
from baton_worker.layers.attention.kv_scales import Scales
from baton_worker.layers.attention.qkv import HeadGate, projection
from baton_worker.layers.attention.sinks import SinkKeys, Sinks
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.linear import Linear
from baton_worker.layers.mixer import Attending
from baton_worker.layers.norm import LayerNorm, RmsNorm, norm
from baton_worker.layers.rope.rope import rotate_


class Attention(Attending):
    """Grouped-query attention over pages.

    One matrix product yields heads [q ... q k ... k v ... v], so q and k are rotated by one
    in-place operation, and K and V are written to the cache by one scatter.
    """

    fuses = True
    """Whether a kernel may do all of `_place`; False where a subclass does it in its own way."""

    def __init__(
        self,
        settings: spec.Attention,
        hidden: int,
        context: BuildContext,
        width: int | None = None,
    ) -> None:
        """`width`: channels of the input, if there are not as many as of the output."""
        super().__init__(_attention_spec(settings, context), context)
        self.rope = settings.rope
        self.project = projection(settings, width or hidden, context)
        self.gate = HeadGate(settings, hidden, context) if settings.gate else None
        self._both_ways = EncoderAttention(replace(settings, mask=spec.Mask()), context)
        self._temperature = settings.scores.temperature
        self._value_dim = None if settings.values is None else settings.values.dim
        self._clip = settings.projections.clip
        qk_norm = settings.qk_norm
        self._norm_last = qk_norm is not None and qk_norm.after_rope
        self._norm_over = "head" if qk_norm is None else qk_norm.over
        self.norms_full_width = self._norm_over == "full"
        self.query_norm, self.key_norm = _head_norms(settings, context)
        self.value_norm: nn.Module | None = None
        self._is_common, self._is_plain = _is_common(settings), _is_plain(settings)
        self.scales = Scales(settings.num_kv_heads, context) if context.scaled else None
        self.sinks = _sinks(settings, context, self.key_norm)
        query = settings.num_heads * settings.value_dim
        self.output = Linear(
            query, {"output": hidden}, context, bias=settings.projections.output_bias
        )

    def forward(
        self, x: Tensor, step: ForwardContext, pages: Tensor, residual: Tensor | None
    ) -> Tensor:
        """x [T, hidden] and this layer's pages to [T, hidden], plus `residual`."""
        heads = self.project(x).view(x.shape[0], -1, self.call.head_dim)
        if self._clip is not None and not isinstance(self._in_one_pass, CpuHeads):
            heads.clamp_(-self._clip, self._clip)
        self._place(heads, step, pages)
        if step.texts:
            attended = self._both_ways(heads, step.texts, step.plans)
        else:
            attended = self._attend(heads[:, : self.call.num_heads], step, pages)
        if self.gate is not None:
            attended = self.gate(attended, x)
        out: Tensor = self.output(attended, residual)
        return out

    def _attend(self, query: Tensor, step: ForwardContext, pages: Tensor) -> Tensor:
        """[T, num_heads, head_dim] to [T, num_heads * value_dim]."""
        plan = step.plans[self.call]
        if self.sinks is None:
            attended = self.backend.forward(plan, query, pages)
        else:
            attended = self.sinks(
                query, lambda scores: self.backend.forward(plan, query, pages, scores)
            )
        if self._value_dim == self.call.value_dim:
            return attended
        return attended.view(*query.shape[:2], -1)[..., : self._value_dim].flatten(1)

    @cached_property
    def _in_one_pass(self) -> Callable[..., None] | None:
        """A fused kernel for all of `_place`, see `CpuHeads`, or None. Built at first use because
        it copies weights."""
        call, norms = self.call, (self.query_norm, self.key_norm, self.value_norm)
        known = all(norm_ is None or isinstance(norm_, RmsNorm | LayerNorm) for norm_ in norms)
        if not (self.fuses and self._is_plain and known):
            return None
        query, key, value = (self._head_norm(norm_) for norm_ in norms)
        if self._is_common and runs(call.device) and call.value_dim is None and value is None:
            from baton_worker.kernels.triton.heads import TritonHeads  # Needs triton.

            scales = None if self.scales is None else self.scales.each
            both = None if query is None or key is None else (query, key)
            return TritonHeads(norms=both, **self._sizes, codes=call.codes, scales=scales)
        if refuses(call.dtype, call.device) is not None:
            return None
        return self._cpu_heads((query, key, value))

    @property
    def _sizes(self) -> dict[str, int]:
        """What every fused kernel asks of the heads."""
        return {
            "num_heads": self.call.num_heads,
            "num_kv_heads": self.call.num_kv_heads,
            "head_dim": self.call.head_dim,
            "dim": 0 if self.rope is None else self.rope.dim,
        }

    def _cpu_heads(self, norms: Norms) -> CpuHeads:
        call = self.call
        return CpuHeads(
            **self._sizes,
            dtype=call.dtype,
            norms=norms,
            norm_last=self._norm_last,
            temperature=self._temperature or (),
            interleaved=self.rope is not None and self.rope.interleaved,
            clip=math.inf if self._clip is None else self._clip,
            value_dim=call.value_dim,
            codes=call.codes,
            scales=(0.0, 0.0) if self.scales is None else self.scales.pair,
        )

    def _place(self, heads: Tensor, step: ForwardContext, pages: Tensor) -> None:
        """Norm and rotate queries and keys in place; write KV to the pages."""
        if (place := self._in_one_pass) is not None:
            angles = None if self.rope is None else step.angles[self.rope]
            cos, sin = (None, None) if angles is None else (angles.cos, angles.sin)
            heated = () if self._temperature is None else (step.positions,)
            place(heads, cos, sin, self.slots(step, pages), pages, *heated)
            return
        self._turn(heads, step)
        self._put(heads, step, pages)

    def _put(self, heads: Tensor, step: ForwardContext, pages: Tensor) -> None:
        scales = None if self.scales is None else self.scales.each
        kv, call = heads[:, self.call.num_heads :], self.call
        put(kv, self.slots(step, pages), pages, call.codes, scales, call.value_dim)

    def _turn(self, heads: Tensor, step: ForwardContext) -> None:
        """Norm and rotate queries and keys in place."""
        num_heads, num_kv_heads = self.call.num_heads, self.call.num_kv_heads
        if not self._norm_last:
            self._norm(heads)
        if self.rope is not None:
            rotate_(heads[:, : num_heads + num_kv_heads], step.angles[self.rope])
        if self._norm_last:
            self._norm(heads)
        if self._temperature is not None:
            assert step.positions is not None and step.positions.ndim == 1
            scale, floor, first = self._temperature
            stretch = 1 + scale * torch.log1p((step.positions + first).div(floor).floor())
            heads[:, :num_heads].mul_(stretch.to(heads.dtype)[:, None, None])

    def _head_norm(self, layer: nn.Module | None) -> HeadNorm | None:
        if not isinstance(layer, RmsNorm | LayerNorm):
            return None
        return HeadNorm(layer.weight, layer.eps, layer.bias, self._norm_over, layer.centered)

    def _norm(self, heads: Tensor) -> None:
        first, last = self.call.num_heads, self.call.num_heads + self.call.num_kv_heads
        for norm_, part in (
            (self.query_norm, heads[:, :first]),
            (self.key_norm, heads[:, first:last]),
        ):
            if norm_ is None:
                continue
            normed = norm_(part.flatten(1)) if self.norms_full_width else norm_(part)
            part.copy_(normed.view_as(part))


def _sinks(
    settings: spec.Attention, context: BuildContext, key_norm: nn.Module | None
) -> Sinks | SinkKeys | None:
    if settings.sinks is None:
        return None
    return SinkKeys(settings, context, key_norm) if settings.sink_keys else Sinks(settings, context)


def _is_common(settings: spec.Attention) -> bool:
    """Whether heads have at most one RMS norm each for q and k, then a half-split rotation, and no
    more: what the kernel of GPUs does."""
    qk_norm = settings.qk_norm
    if settings.scores.temperature is not None:
        return False
    plainly_normed = qk_norm is None or (
        (qk_norm.norm.kind, qk_norm.over) == ("rms", "head")
        and not (qk_norm.after_rope or qk_norm.keys_only)
    )
    rope = settings.rope
    plainly_turned = rope is not None and not (
        rope.interleaved or isinstance(rope, spec.FourierRope)
    )
    return plainly_normed and plainly_turned


def _is_plain(settings: spec.Attention) -> bool:
    """Whether every head is rotated by the same angles."""
    return not isinstance(settings.rope, spec.FourierRope)


def _attention_spec(settings: spec.Attention, context: BuildContext) -> AttentionSpec:
    return AttentionSpec(
        settings.num_heads,
        settings.num_kv_heads,
        settings.head_dim,
        settings.scale,
        settings.mask.window,
        context.dtype,
        context.device,
        softcap=settings.scores.softcap,
        slopes=settings.scores.slopes,
        chunk=settings.mask.chunk,
        sinks=settings.sinks is not None and not settings.sinks.keys,
        token_sinks=settings.sink_keys > 0,
        value_dim=settings.kept_dim,
        partial=isinstance(settings, spec.DualChunkAttention),
        spans=settings.mask.spans,
        codes=context.codes,
        layout=context.layout,
        tree=context.trees,
        context=settings.context,
    )


def _head_norms(
    settings: spec.Attention, context: BuildContext
) -> tuple[nn.Module | None, nn.Module | None]:
    """The norms of queries and keys; the shape of the weight sets the normed axes."""
    qk_norm = settings.qk_norm
    if qk_norm is None:
        return None, None
    dim, query, key = settings.head_dim, settings.num_heads, settings.num_kv_heads
    shapes: dict[str, tuple[int | tuple[int, ...], int | tuple[int, ...]]] = {
        "head": (dim, dim),
        "each": ((query, dim), (key, dim)),
        "full": (query * dim, key * dim),
    }
    query_shape, key_shape = shapes[qk_norm.over]
    first_query, first_key = settings.first_heads
    query_norm = norm(qk_norm.norm, query_shape, "query_norm", context, first_query)
    return (
        None if qk_norm.keys_only else query_norm,
        norm(qk_norm.norm, key_shape, "key_norm", context, first_key),
    )
