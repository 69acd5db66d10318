"""The decoder: the forward loop over the blocks of a spec."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.attention import AttentionBatch
from baton_worker.kv_cache.cache import KVCache
from baton_worker.kv_cache.layer_groups import LayerGroups
from baton_worker.layers.attention.whole_texts import Texts
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Embedding
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.linear import Linear
from baton_worker.layers.lm_head import Head
from baton_worker.layers.media_embeddings import MediaEmbeddings
from baton_worker.layers.mixer import Mixer
from baton_worker.layers.moe.router import Router
from baton_worker.layers.norm import norm
from baton_worker.layers.rope.fope import Fourier
from baton_worker.layers.rope.rope import Rotary
from baton_worker.models.block import Sequential
from baton_worker.pooling.pooler import Pooler

if TYPE_CHECKING:
    from baton_worker.models.vision.tower import VisionTower

Plans: TypeAlias = list[dict[Any, Any]]
"""Plans of a step per layer group, keyed by each mixer's `call`."""


class Model(nn.Module):
    """A causal language model over a paged cache. Holds weights only, no request state."""

    def __init__(
        self, decoder: spec.Decoder, blocks: Iterable[nn.Module], site: BuildContext
    ) -> None:
        super().__init__()
        embedding, hidden = decoder.embedding, decoder.hidden
        self.embedding = Embedding(embedding, decoder.vocab, hidden, site)
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm(decoder.norm, hidden, "norm", site) if decoder.final_norm else None
        self.project = None
        if embedding.width is not None and embedding.width != hidden:
            self.project = Linear(hidden, {"project_out": embedding.width}, site)
        tied_to = self.embedding.tokens if decoder.head.tied else None
        width = embedding.width or hidden
        self.head = Head(decoder.head, width, decoder.vocab, site, tied_to=tied_to)
        mixers = [module for module in self.modules() if isinstance(module, Mixer)]
        self.dtype = site.dtype
        self._skips = {skip.to: skip for skip in decoder.skips}
        self._kept = {skip.source for skip in decoder.skips}
        ropes = [mixer.rope for mixer in mixers if mixer.rope is not None]
        self._rotaries = {rope: _rotary(rope, site) for rope in ropes}
        self.fouriers = nn.ModuleList(r for r in self._rotaries.values() if isinstance(r, Fourier))
        self._backends: dict[Any, Any] = {mixer.call: mixer.backend for mixer in mixers}
        self._calls = [
            {module.call for module in block.modules() if isinstance(module, Mixer)}
            for block in self.blocks
        ]
        """By layer."""
        self.pooler: Pooler | None = None
        """Pooling head for non-generative tasks; set before the weights are filled."""
        self.vision: VisionTower | None = None
        """Encoder of images; set before the weights are filled."""
        routers = [m for m in self.blocks[-1].modules() if isinstance(m, Router)]
        self.alone = not any(router.together for router in routers)
        """Whether the last layer's ffn treats each token independently."""
        self.progress = 0
        """Number of layers run since construction: advances within a step, for watchdogs."""

    def layers(self) -> list[Layer]:
        """Every layer that holds weights, in execution order."""
        return [module for module in self.modules() if isinstance(module, Layer)]

    @property
    def capture_blocker(self) -> str | None:
        """Why decode steps cannot be captured (see `graphs`), as half a sentence; None if
        they can."""
        parts = [*self._backends.values(), *self.layers()]
        return next((part.capture_blocker for part in parts if part.capture_blocker), None)

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        batch: AttentionBatch,
        cache: KVCache,
        texts: tuple[Texts, ...] = (),
        media: MediaEmbeddings | None = None,
    ) -> Tensor:
        """Run one ragged step and write its KV to the cache.

        Args:
            tokens: int64 [T], the new tokens of all rows, row after row.
            positions: int64 [T], their positions in their sequences; [axes, T] if all ropes
                have sections, for image tokens.
            batch: the row and the slot of each token.
            cache: made from this model's spec, on its device, in its dtype.
            texts: the rows by length, for whole texts with bidirectional attention; their KV
                cannot be reused.
            media: embeddings in the place of those of placeholder tokens.

        Returns:
            Hidden states [T, hidden] for `logits` and the pooler.
        """
        cache.begin(batch)
        plans = self.plan(batch, cache.groups)
        return self.run(tokens, positions, batch, cache, plans, texts, media)

    def plan(self, batch: AttentionBatch, groups: LayerGroups) -> Plans:
        """Plan a step of these rows on the host."""
        plans = Plans()
        for group in range(len(groups.windows)):
            part = batch.of(group)
            members = zip(groups.of, self._calls, strict=True)
            kinds = set().union(*(calls for of, calls in members if of == group))
            plans.append({call: self._backends[call].plan(part, call) for call in kinds})
        return plans

    @torch.inference_mode()
    def run(
        self,
        tokens: Tensor,
        positions: Tensor,
        batch: AttentionBatch,
        cache: KVCache,
        plans: Plans,
        texts: tuple[Texts, ...] = (),
        media: MediaEmbeddings | None = None,
    ) -> Tensor:
        """`forward` after `cache.begin` and `plan`: device work only, unless there is a
        `capture_blocker`."""
        steps = self._steps(positions, batch, plans, texts)
        x = self.embedding(tokens, positions)
        hidden = self._through(x if media is None else media.into(x), steps, cache, media)
        return hidden if self._defers else self._finished(hidden)

    def _steps(
        self,
        positions: Tensor,
        batch: AttentionBatch,
        plans: Plans,
        texts: tuple[Texts, ...],
    ) -> list[ForwardContext]:
        """Forward contexts by layer group; they differ in slot mapping."""
        step = ForwardContext(
            slots=batch.slot_mapping,
            angles={rope: r.angles(positions, self.dtype) for rope, r in self._rotaries.items()},
            plans={},
            positions=positions,
            texts=texts,
        )
        return [
            replace(step, slots=batch.of(group).slot_mapping, plans=plan)
            for group, plan in enumerate(plans)
        ]

    def _through(
        self,
        x: Tensor,
        steps: list[ForwardContext],
        cache: KVCache,
        media: MediaEmbeddings | None,
    ) -> Tensor:
        """Run the stream [T, hidden] through every block."""
        kept, of, last = dict[int, Tensor](), cache.groups.of, self._last
        for layer, (block, pages) in enumerate(zip(self.blocks, cache.views, strict=True)):
            if layer in self._skips:
                skip = self._skips[layer]
                x = torch.lerp(x, kept[skip.source], skip.weight)
            if layer in self._kept:
                kept[layer] = x
            run = last.mix if last is block else block
            x = run(x, steps[of[layer]], pages)
            if media is not None:
                x = media.onto(x, layer)
            self.progress += 1
        return x

    @property
    def _last(self) -> Sequential | None:
        """The last block, if its ffn half can run separately."""
        last = self.blocks[-1]
        return last if isinstance(last, Sequential) else None

    @property
    def _defers(self) -> bool:
        """Whether the last ffn half is deferred to `logits`. Only the head reads it then, for one
        token per prompt, so the others skip the ffn of a layer."""
        return self.alone and self.pooler is None

    def _finished(self, hidden: Tensor) -> Tensor:
        """The deferred half, if any, and the final norm."""
        if (last := self._last) is not None:
            hidden = last.feed(hidden)
        if self.norm is not None:
            hidden = self.norm(hidden)
        return hidden if self.project is None else self.project(hidden)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] rows of `forward`'s result to float32 [R, vocab]."""
        logits: Tensor = self.head(self._finished(hidden) if self._defers else hidden)
        return logits


def _rotary(rope: spec.Rope, site: BuildContext) -> Rotary | Fourier:
    if isinstance(rope, spec.FourierRope):
        return Fourier(rope, site)
    return Rotary(rope, site.device)
