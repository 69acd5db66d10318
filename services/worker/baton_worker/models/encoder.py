"""The encoder: the forward loop over whole texts, without a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.attention.bidirectional import Bidirectional
from baton_worker.layers.attention.whole_texts import by_length
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Embedding, Table
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.norm import norm
from baton_worker.layers.rope.rope import Rotary
from baton_worker.models.block import STYLES
from baton_worker.models.build import LAYERS
from baton_worker.pooling.pooler import Pooler
from baton_worker.spec.names import Names


class Stack(nn.Module):
    """The blocks of an encoder and the final norm. Counts the layers that it has run."""

    def __init__(
        self, encoder: spec.Encoder, blocks: Sequence[nn.Module], context: BuildContext
    ) -> None:
        super().__init__()
        self.blocks, self.norm = nn.ModuleList(blocks), None
        if encoder.final_norm:
            self.norm = norm(encoder.norm, encoder.hidden, "norm", context)
        mixers = [module for module in self.modules() if isinstance(module, Bidirectional)]
        ropes = [mixer.rope for mixer in mixers if mixer.rope is not None]
        self._rotaries = {rope: Rotary(rope, context.device) for rope in ropes}
        self._dtype = context.dtype
        self.progress = 0

    def forward(
        self, x: Tensor, positions: Tensor, counts: Sequence[int], is_key: Tensor | None = None
    ) -> Tensor:
        """[T, hidden] of packed rows of lengths `counts` to the final hidden states; positions are
        int64 [T], or [axes, T] with rope sections; `is_key` as of `context`."""
        step, none = self.context(positions, counts, x.device, is_key), torch.empty(0)
        for block in self.blocks:
            x = block(x, step, none)
            self.progress += 1
        out: Tensor = x if self.norm is None else self.norm(x)
        return out

    def context(
        self,
        positions: Tensor,
        counts: Sequence[int],
        device: torch.device,
        is_key: Tensor | None = None,
    ) -> ForwardContext:
        """The context that layers share: rotations, and which tokens see one another: all of a
        text, or those of them that are keys, bool [T] `is_key`."""
        return ForwardContext(
            slots=torch.empty(0),
            angles={rope: r.angles(positions, self._dtype) for rope, r in self._rotaries.items()},
            plans={},
            texts=by_length(counts, device, is_key),
        )


class EncoderModel(nn.Module):
    """Packed texts to hidden states. Holds weights only, no request state."""

    def __init__(
        self, encoder: spec.Encoder, blocks: Sequence[nn.Module], context: BuildContext
    ) -> None:
        super().__init__()
        hidden = encoder.hidden
        self.embedding = Embedding(encoder.embedding, encoder.vocab, hidden, context)
        self.types = self.embedding_norm = None
        self._last_type = encoder.token_types - 1
        if encoder.token_types:
            self.types = Table(encoder.token_types, hidden, "token_types", context)
        if encoder.embedding_norm is not None:
            self.embedding_norm = norm(encoder.embedding_norm, hidden, "embedding_norm", context)
        self.stack = Stack(encoder, blocks, context)
        self.dtype = context.dtype
        self.pooler: Pooler | None = None
        """The pooling head; set before the weights are filled."""

    @property
    def progress(self) -> int:
        """Number of layers run since construction: advances within a step, for watchdogs."""
        return sum(part.progress for part in self.modules() if isinstance(part, Stack))

    def layers(self) -> list[Layer]:
        """Every layer that holds weights, in execution order."""
        return [module for module in self.modules() if isinstance(module, Layer)]

    @torch.inference_mode()
    def encode(
        self, tokens: Tensor, positions: Tensor, counts: Sequence[int], types: Tensor
    ) -> Tensor:
        """Run whole texts.

        Args:
            tokens: int64 [T], the tokens of all texts, text after text.
            positions: int64 [T], their positions in their texts.
            counts: tokens per text.
            types: int64 [T], 1 for tokens of the second text of a pair, else 0.

        Returns:
            The final hidden states, [T, hidden].
        """
        x = self.embedding(tokens, positions)
        if self.types is not None:
            # A tokenizer may emit token types that the model does not have.
            x = x + self.types(types.clamp(max=self._last_type))
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        out: Tensor = self.stack(x, positions, counts)
        return out


def build_encoder(encoder: spec.Encoder, context: BuildContext) -> EncoderModel:
    """The modules of a spec with uninitialised parameters. `ModelError` as from `build`."""
    context = replace(context, name=Names(encoder.tensors.names))
    return EncoderModel(encoder, blocks_of(encoder, context), context)


def blocks_of(encoder: spec.Encoder, context: BuildContext) -> list[nn.Module]:
    """The blocks of a stack, in order."""
    names = Names(encoder.tensors.names)
    return [
        _block(encoder, layer, replace(context, name=names.at(layer)))
        for layer in range(len(encoder.layers))
    ]


def _block(encoder: spec.Encoder, layer: int, context: BuildContext) -> nn.Module:
    mixer, ffn = encoder.layers[layer]
    assert isinstance(mixer, spec.Attention)
    attention = Bidirectional(mixer, encoder.hidden, context)
    block = STYLES[encoder.style](
        encoder, attention, LAYERS[type(ffn)](ffn, encoder.hidden, context), context
    )
    if layer < encoder.bare_layers:
        block.get_submodule("mixer_half").register_module("norm", nn.Identity())
    return block
