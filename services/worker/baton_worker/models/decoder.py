"""The decoder: the forward loop over the blocks of a spec."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.attention import AttentionBatch
from baton_worker.kv_cache.cache import KVCache
from baton_worker.layers.altup import Streams
from baton_worker.layers.attention.cross_attention import CrossAttention
from baton_worker.layers.attention.cross_states import CrossInputs, CrossStep
from baton_worker.layers.attention.whole_texts import Texts
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Embedding
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.layer_embeddings import LayerEmbeddingGate, LayerEmbeddings
from baton_worker.layers.linear import Linear
from baton_worker.layers.lm_head import Head
from baton_worker.layers.media_embeddings import MediaEmbeddings
from baton_worker.layers.moe.router import Router
from baton_worker.layers.norm import norm
from baton_worker.layers.residual import Residual, added, normed
from baton_worker.models.block import Sequential
from baton_worker.models.block_stack import BlockStack, Plans
from baton_worker.models.stage_states import StageLink, StageStates
from baton_worker.pooling.pooler import Pooler

if TYPE_CHECKING:
    from baton_worker.models.vision.media_tower import MediaTower


class Model(BlockStack):
    """A causal language model over a paged cache. Holds weights only, no request state."""

    def __init__(
        self, decoder: spec.Decoder, blocks: Iterable[nn.Module], context: BuildContext
    ) -> None:
        super().__init__()
        self._device = context.device
        stage = decoder.stage or spec.Stage(0, len(decoder.layers), len(decoder.layers))
        self.stage = stage
        """The layers of this stage."""
        self.link: StageLink | None = None
        """Connects it with the other stages, if there are any."""
        self._set_embedding(decoder, context)
        self._set_blocks(blocks, context)
        self.width = decoder.embedding.width or decoder.hidden
        """Channels of a hidden state that `logits` reads."""
        self._set_head(decoder, context)
        self._suppressed = _token_ids(decoder.suppressed_tokens, context)
        self._skips = {skip.to: skip for skip in decoder.skips}
        self._skip_sources = {skip.source for skip in decoder.skips}
        self.adapters = context.adapters
        """The adapter of each token, where adapters are served."""
        self.draft_inputs: tuple[int, ...] | None = None
        """The layers whose inputs a trained draft head reads beside the last hidden states. None:
        there is no head, and the last feed-forward may be deferred."""
        self.pooler: Pooler | None = None
        """Pooling head for non-generative tasks; set before the weights are filled."""
        self.vision: MediaTower | None = None
        """Encoder of images; set before the weights are filled."""
        self._vision_tokens = _token_ids(decoder.vision_tokens, context)
        self._set_layer_embeddings(decoder, context)
        self.streams = None if decoder.altup is None else Streams(decoder, context)
        self._cross = [m for m in self.blocks.modules() if isinstance(m, CrossAttention)]
        routers = [m for m in self.blocks[-1].modules() if isinstance(m, Router)]
        self.alone = stage.is_last and not any(router.together for router in routers)
        """Whether the last layer's ffn treats each token independently."""
        self.progress = 0
        """Number of layers run since construction: advances within a step, for watchdogs."""

    def _set_embedding(self, decoder: spec.Decoder, context: BuildContext) -> None:
        self.embedding: Embedding | None = None
        """None in a stage that reads no token vectors. A tied head needs the table, too."""
        if self.stage.is_first or (self.stage.is_last and decoder.head.tied):
            self.embedding = Embedding(decoder.embedding, decoder.vocab, decoder.hidden, context)

    def _set_layer_embeddings(self, decoder: spec.Decoder, context: BuildContext) -> None:
        self.layer_embeddings: LayerEmbeddings | None = None
        if decoder.layer_embeddings is not None:
            self.layer_embeddings = LayerEmbeddings(decoder, context)
        for number, block in enumerate(self.blocks):
            for gate in block.modules():
                if isinstance(gate, LayerEmbeddingGate):
                    gate.number = number

    def _set_head(self, decoder: spec.Decoder, context: BuildContext) -> None:
        """Build the layers after the last block."""
        self.norm: nn.Module | None = None
        self.project: Linear | None = None
        self.head: Head | None = None
        """None in a stage that is not the last one."""
        if not self.stage.is_last:
            return
        hidden, tied_to = decoder.hidden, None
        if decoder.final_norm:
            self.norm = norm(decoder.norm, hidden, "norm", context)
        if self.width != hidden:
            self.project = Linear(hidden, {"project_out": self.width}, context)
        if decoder.head.tied:
            assert self.embedding is not None
            tied_to = self.embedding.tokens
        self.head = Head(decoder.head, self.width, decoder.vocab, context, tied_to=tied_to)

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
            Hidden states [T, hidden] for `logits` and the pooler; [T, width + any] with the
            `draft_inputs` behind those that `logits` reads. In a stage that is not the last one,
            what it has sent on.
        """
        cache.begin(batch)
        plans = self.plan(batch, cache.groups)
        return self.run(tokens, positions, batch, cache, plans, texts, media)

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
        steps = self.contexts(positions, batch, plans, texts)
        if self._vision_tokens is not None:
            vision = (tokens[:, None] == self._vision_tokens).any(-1)
            steps = [replace(step, vision=vision) for step in steps]
        if media is not None and media.cross is not None:
            cross = self._cross_step(media.cross, cache)
            steps = [replace(step, cross=cross) for step in steps]
        inputs, skip_states = list[Tensor](), dict[int, Tensor]()
        if self.stage.is_first:
            assert self.embedding is not None
            x = self.embedding(tokens, positions, media)
        else:
            x = self._receive_states(len(tokens), steps[0], skip_states)
        if self.layer_embeddings is not None:
            own = self.layer_embeddings(x, tokens)
            steps = [replace(step, layer_embeddings=own) for step in steps]
        if self.streams is not None:
            x = self.streams.enter(x)
        hidden = self._run_layers(x, steps, cache, media, inputs, skip_states)
        if not self.stage.is_last:
            return self._send_states(hidden, steps[0], skip_states)
        if self._defers:
            return hidden
        hidden = self._finish(hidden)
        return torch.cat((hidden, *inputs), -1) if inputs else hidden

    def _receive_states(
        self, num_tokens: int, step: ForwardContext, skip_states: dict[int, Tensor]
    ) -> Tensor:
        """The states of the stage before this one; fills `skip_states`."""
        assert self.link is not None, "a stage is linked before its first step"
        states = self.link.receive(num_tokens, step)
        skip_states |= zip(self._open(self.stage.start), states.skips, strict=True)
        return states.hidden

    def _send_states(
        self, x: Tensor, step: ForwardContext, skip_states: dict[int, Tensor]
    ) -> Tensor:
        """Send the stream [T, hidden] to the stage behind this one, and return it."""
        assert self.link is not None, "a stage is linked before its first step"
        skips = [skip_states[source] for source in self._open(self.stage.end)]
        self.link.send(StageStates(x, skips), step)
        return x

    def _open(self, layer: int) -> list[int]:
        """Layers before this one whose inputs it or later ones mix in."""
        sources = {skip.source for to, skip in self._skips.items() if to >= layer > skip.source}
        return sorted(sources)

    def _cross_step(self, inputs: CrossInputs, cache: KVCache) -> CrossStep:
        """Make room for the states, and plan the attention to them."""
        cache.cross.grow(inputs.num_pages)
        backends = {layer.call: layer.backend for layer in self._cross}
        return CrossStep.plan(inputs, backends.items(), cache.page_size, self._device)

    def _run_layers(
        self,
        x: Tensor,
        steps: list[ForwardContext],
        cache: KVCache,
        media: MediaEmbeddings | None,
        inputs: list[Tensor],
        skip_states: dict[int, Tensor],
    ) -> Tensor:
        """Run the stream [T, hidden] through every block that is here; appends `draft_inputs` to
        `inputs`, and those that skips read to `skip_states`."""
        of = cache.groups.of
        views, recorded = cache.views[self.cached], self.draft_inputs or ()
        stream: Residual = x
        for layer in self.stage.layers:
            block, pages = self.blocks[layer], views[layer]
            if layer in self._skips:
                skip = self._skips[layer]
                stream = torch.lerp(added(stream), skip_states[skip.source], skip.weight)
            if layer in self._skip_sources:
                stream = skip_states[layer] = added(stream)
            if layer in recorded:
                stream = added(stream)
                inputs.append(stream)
            stream = self._run(block, stream, steps[of[layer]], pages)
            if media is not None:
                stream = media.onto(added(stream), layer)
            self.progress += 1
        return added(stream)

    def _run(self, block: nn.Module, x: Residual, step: ForwardContext, pages: Tensor) -> Residual:
        """One block; of the last one its mixer half alone, if the other one is run by
        `_finish`."""
        if not isinstance(block, Sequential):
            out: Tensor = block(added(x), step, pages)
            return out
        if block is self.blocks[-1]:
            return block.mix(x, step, pages)
        return block.extend(x, step, pages)

    @property
    def _last(self) -> Sequential | None:
        """The last block, if its ffn half can run separately."""
        last = self.blocks[-1]
        return last if isinstance(last, Sequential) else None

    @property
    def _defers(self) -> bool:
        """Whether the last ffn half is deferred to `logits`. Only the head reads it then, for one
        token per prompt, so the others skip the ffn of a layer."""
        return self.alone and self.pooler is None and self.draft_inputs is None

    def _finish(self, hidden: Tensor) -> Tensor:
        """The deferred half, if any, and the final norm."""
        stream: Residual = hidden
        if (last := self._last) is not None:
            stream = last.feed(hidden)
        if self.streams is not None:
            stream = self.streams.leave(added(stream))
        if self.norm is not None:
            stream, _ = normed(stream, self.norm)
        out = added(stream)
        return out if self.project is None else self.project(out)

    def without_draft_inputs(self, hidden: Tensor) -> Tensor:
        """The channels of rows of `forward`'s result that `logits` reads."""
        return hidden[:, : self.width] if self.draft_inputs else hidden

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[R, any] rows of `forward`'s result to float32 [R, vocab]."""
        assert self.head is not None, "the last stage has the head"
        hidden = self.without_draft_inputs(hidden)
        logits: Tensor = self.head(self._finish(hidden) if self._defers else hidden)
        if self._suppressed is None:
            return logits
        return logits.index_fill(-1, self._suppressed, torch.finfo(logits.dtype).min)


def _token_ids(tokens: Sequence[int], context: BuildContext) -> Tensor | None:
    """int64 on the model's device; None for none."""
    return torch.tensor(tokens, device=context.device) if tokens else None
