"""Multi-head latent attention over pages of latents."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor, nn

from baton.errors import ModelError
from baton_worker import spec
from baton_worker.attention import AttentionSpec
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kernels.kv_pages import scatter
from baton_worker.kernels.lora.up_projection import LoraUpProjection
from baton_worker.kernels.rope import CpuLatents, HeadNorm, refuses
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.linear import Linear
from baton_worker.layers.mixer import Attending
from baton_worker.layers.norm import norm
from baton_worker.layers.rope.rope import rotate_


def _call(settings: spec.LatentAttention, context: BuildContext) -> AttentionSpec:
    """One KV head, whose keys begin with its values."""
    return AttentionSpec(
        settings.num_heads,
        1,
        settings.width,
        settings.scale,
        None,
        context.dtype,
        context.device,
        latent=True,
        value_dim=settings.kv_rank,
        layout=context.layout,
        tree=context.trees,
        most_keys=getattr(settings, "top_k", None),
        context=settings.context,
    )


class LatentAttention(Attending):
    """Multi-head latent attention of DeepSeek-V2 (arXiv:2405.04434) with absorbed up-projections.

    A key is W_uk c and a value W_uv c of one latent c per token, so q.k is (W_uk^T q).c: queries
    are projected into the latent space, all heads attend to the same latents, and W_uv projects the
    outputs back. The backend sees one KV head whose keys begin with its values.

        cache, one token   [ c: kv_rank | rotated key: rope_dim ]
        query of a head    [ W_uk^T q   | rotated query         ]
    """

    def __init__(self, settings: spec.LatentAttention, hidden: int, context: BuildContext) -> None:
        if context.codes is not None:
            raise ModelError(
                f"No kernel reads latents as {context.codes}: serve this model with "
                "--kv-cache-dtype auto."
            )
        super().__init__(_call(settings, context), context)
        self._settings, self.rope = settings, settings.rope
        self._set_query(settings, hidden, context)
        self.down = Linear(hidden, {"kv_down": settings.width}, context, bias=settings.bias)
        self.norm = norm(settings.norm, settings.kv_rank, "kv_down_norm", context)
        self.up = UpProjection(settings, context)
        width = settings.num_heads * settings.value_dim
        self.output = Linear(width, {"output": hidden}, context, bias=settings.bias)

    def _set_query(
        self, settings: spec.LatentAttention, hidden: int, context: BuildContext
    ) -> None:
        """The projection of queries, through a latent of their own where the model has one."""
        query = settings.num_heads * (settings.nope_dim + settings.rope_dim)
        self.query_down = nn.Sequential()
        if (rank := settings.query_rank) is None:
            self.query = Linear(hidden, {"query": query}, context)
            return
        down = Linear(hidden, {"query_down": rank}, context, bias=settings.bias)
        self.query_down.append(down)
        self.query_down.append(norm(settings.norm, rank, "query_down_norm", context))
        self.query = Linear(rank, {"query_up": query}, context)

    def forward(
        self, x: Tensor, step: ForwardContext, pages: Tensor, residual: Tensor | None
    ) -> Tensor:
        """x [T, hidden] and this layer's pages to [T, hidden], plus `residual`."""
        low = self.query_down(x)
        heads = self._heads(x, low, step, pages)
        attended = self._attend(heads[:, :-1], x, low, step, pages)
        attended_heads = attended.view(x.shape[0], self._settings.num_heads, self._settings.kv_rank)
        out: Tensor = self.output(self.up.out_of_latents(attended_heads).flatten(1), residual)
        return out

    def _heads(self, x: Tensor, low: Tensor, step: ForwardContext, pages: Tensor) -> Tensor:
        """Queries in the latent space, then the cache entry, [T, num_heads + 1, width], which is
        also written to the pages. `low` is the input of the query up-projection, [T, query_rank],
        or x itself."""
        settings = self._settings
        heads = x.new_empty((x.shape[0], settings.num_heads + 1, settings.width))
        query, down = self.query(low), self.down(x)
        nope = query.view(x.shape[0], settings.num_heads, -1)[..., : settings.nope_dim]
        self.up.into_latents(nope, heads[:, :-1, : settings.kv_rank])
        if (place := self._in_one_pass) is None:
            self._place(heads, query, down, step)
            scatter(heads[:, None, -1:], self.slots(step, pages), pages)
        else:
            angles = None if settings.rope is None else step.angles[settings.rope]
            turn = None if angles is None else (angles.cos, angles.sin)
            positions = None if settings.temperature is None else step.positions
            place(heads, query, down, turn, positions, self.slots(step, pages), pages)
        return heads

    @cached_property
    def _in_one_pass(self) -> CpuLatents | None:
        """A fused kernel for `_place` and the write, or None. Built at first use because it copies
        weights."""
        settings, rope = self._settings, self._settings.rope
        if refuses(self.call.dtype, self.call.device) is not None:
            return None
        return CpuLatents(
            norm=HeadNorm(
                self.norm.weight, self.norm.eps, self.norm.bias, centered=self.norm.centered
            ),
            dtype=self.call.dtype,
            temperature=settings.temperature or (),
            num_heads=settings.num_heads,
            kv_rank=settings.kv_rank,
            nope_dim=settings.nope_dim,
            rope_dim=settings.rope_dim,
            dim=0 if rope is None else rope.dim,
            interleaved=rope is not None and rope.interleaved,
            latent_scale=settings.latent_scale,
        )

    def _place(self, heads: Tensor, query: Tensor, down: Tensor, step: ForwardContext) -> None:
        """Twin of `CpuLatents` but for the write: see its arguments."""
        settings = self._settings
        latent, turned = heads[:, -1, : settings.kv_rank], heads[..., settings.kv_rank :]
        latent.copy_(self.norm(down[:, : settings.kv_rank]) * settings.latent_scale)
        rotated = query.view(len(heads), settings.num_heads, -1)[..., settings.nope_dim :]
        turned[:, :-1], turned[:, -1] = rotated, down[:, settings.kv_rank :]
        if settings.rope is not None:
            rotate_(turned, step.angles[settings.rope])
        if settings.temperature is not None:
            assert step.positions is not None and step.positions.ndim == 1
            scale, floor = settings.temperature
            stretch = 1 + scale * torch.log1p(step.positions.div(floor).floor())
            heads[:, :-1].mul_(stretch.to(heads.dtype)[:, None, None])

    def _attend(
        self, query: Tensor, x: Tensor, low: Tensor, step: ForwardContext, pages: Tensor
    ) -> Tensor:
        """[T, num_heads, width] to [T, num_heads * kv_rank]."""
        return self.backend.forward(step.plans[self.call], query, pages)


class UpProjection(Layer):
    """Up-projections of a latent to keys and to values, per head."""

    def __init__(self, settings: spec.LatentAttention, context: BuildContext) -> None:
        super().__init__()
        self._name = context.name("kv_up")
        self._nope_dim, self._width = settings.nope_dim, settings.width
        rows = settings.nope_dim + settings.value_dim
        shape = (settings.num_heads, rows, settings.kv_rank)
        self.weight: nn.Parameter | None = context.empty(*shape)
        self._into: EachHead | None = None
        self._out: EachHead | None = None
        self.in_features, self._rows = settings.kv_rank, settings.num_heads * rows
        self.like = torch.empty(0, dtype=context.dtype, device=context.device)
        self.lora: LoraUpProjection | None = None
        """LoRA products, where adapters are served."""
        if context.adapters is not None:
            self.lora = LoraUpProjection(context.adapters, settings.num_heads, settings.nope_dim)

    @property
    def lora_parts(self) -> dict[str, int]:
        """See `Linear`."""
        return {} if self.lora is None else {self._name: self._rows}

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """One tensor, [num_heads * (nope_dim + value_dim), kv_rank]."""
        if self.weight is not None:
            yield f"{self._name}.weight", self.weight.flatten(0, 1)

    def process_weights_after_loading(self) -> None:
        """Use the CPU's batch-invariant product where there is one: torch picks its algorithm by
        the number of tokens."""
        assert self.weight is not None
        if CpuLinear.refuses(self.weight) is None:
            key, value = self.weight[:, : self._nope_dim], self.weight[:, self._nope_dim :]
            heads = len(self.weight)
            self._into = EachHead(key.transpose(1, 2), (heads + 1) * self._width)
            self._out = EachHead(value, heads * value.shape[1])
            self.weight = None

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weight once it is packed for kernels."""
        return sum(part.nbytes for part in (self._into, self._out) if part is not None)

    def into_latents(self, query: Tensor, out: Tensor) -> None:
        """[T, num_heads, nope_dim] to `out` [T, num_heads, kv_rank], of any stride of tokens and
        heads."""
        if self._into is not None:
            self._into.write(query, out)
        else:
            assert self.weight is not None
            key = self.weight[:, : self._nope_dim]
            out.copy_(torch.bmm(query.transpose(0, 1), key).transpose(0, 1))
        if self.lora is not None and (more := self.lora.into_latents(query, out)) is not out:
            out.copy_(more)

    def out_of_latents(self, attended: Tensor) -> Tensor:
        """[T, num_heads, kv_rank] to [T, num_heads, value_dim]."""
        values = self._base_out(attended)
        return values if self.lora is None else self.lora.out_of_latents(attended, values)

    def _base_out(self, attended: Tensor) -> Tensor:
        if self._out is not None:
            return self._out(attended)
        assert self.weight is not None
        value = self.weight[:, self._nope_dim :]
        return torch.bmm(attended.transpose(0, 1), value.transpose(1, 2)).transpose(0, 1)


class EachHead:
    """A separate product per head: [T, heads, in] to [T, heads, out].

    Args:
        weights: [heads, out, in].
        stride: elements between the outputs of two tokens.
    """

    def __init__(self, weights: Tensor, stride: int) -> None:
        self._shape = weights.shape[:2]
        self._kernels = [CpuLinear(weight.contiguous(), None) for weight in weights]
        for kernel in self._kernels:
            kernel.join(stride)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights."""
        return sum(kernel.nbytes for kernel in self._kernels)

    def __call__(self, x: Tensor) -> Tensor:
        """Apply each head's weight."""
        out = x.new_empty((len(x), *self._shape))
        self.write(x, out)
        return out

    def write(self, x: Tensor, out: Tensor) -> None:
        """As a call, into `out`, whose heads are any distance apart."""
        for kernel, inputs, result in zip(self._kernels, x.unbind(1), out.unbind(1), strict=True):
            kernel.write(inputs, None, result)
