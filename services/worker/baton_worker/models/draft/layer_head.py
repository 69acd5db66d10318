"""Draft heads that are decoder layers over embeddings and hidden states: EAGLE, EAGLE-3, MTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.attention import AttentionBatch
from baton_worker.kv_cache import KVCache
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Embedding
from baton_worker.layers.linear import Linear
from baton_worker.layers.lm_head import Head
from baton_worker.layers.norm import norm
from baton_worker.models.block import Joined
from baton_worker.models.block_stack import BlockStack
from baton_worker.models.decoder import Model
from baton_worker.models.draft.state_head import spread


class LayerHeadModel(BlockStack):
    """See `spec.LayerHead`. Its layers of the cache follow those of the target, whose table and
    language head it shares unless it has its own.

    Args:
        target: has these two whole.
    """

    def __init__(
        self,
        head: spec.LayerHead,
        blocks: Iterable[nn.Module],
        target: Model,
        context: BuildContext,
        first_layer: int,
    ) -> None:
        super().__init__()
        decoder, hidden = head.decoder, head.hidden
        self.settings = head
        self._embed: Callable[[Tensor, Tensor], Tensor] | None = None
        self._to_logits: Callable[[Tensor], Tensor] | None = None
        self._share(head, target)
        self.embedding = self.head = None
        if head.own_embedding:
            self.embedding = Embedding(decoder.embedding, target_vocab(head), hidden, context)
        self._states = target.width * len(head.reads) if head.reads else target.width
        self._skipped = target.width if head.reads else 0
        joined = isinstance(head.inputs, spec.JoinedAttention)
        width = self._states if joined else 2 * hidden
        bias = isinstance(head.inputs, spec.Fusion) and head.inputs.bias
        self.fusion = Linear(width, {"fusion": hidden}, context, bias=bias)
        self.embedding_norm = self.hidden_norm = None
        if isinstance(head.inputs, spec.Fusion):
            before = head.inputs
            if before.embedding_norm is not None:
                role = "fusion_embedding_norm"
                self.embedding_norm = norm(before.embedding_norm, hidden, role, context)
            if before.hidden_norm is not None:
                self.hidden_norm = norm(before.hidden_norm, hidden, "fusion_hidden_norm", context)
        self._set_blocks(blocks, context, first_layer)
        self.norm = norm(decoder.norm, hidden, "norm", context) if decoder.final_norm else None
        if head.own_head:
            self.head = Head(decoder.head, hidden, decoder.vocab, context)
        self.token_ids: Tensor | None = None
        """int64 [vocab]: the target's token of each of the head's; None: they are the same. Set
        when the weights are."""

    def _share(self, head: spec.LayerHead, target: Model) -> None:
        """The target's layers are called through bound methods: modules of the target are not
        modules of the head."""
        assert target.embedding is not None and target.head is not None, "a target of one stage"
        if not head.own_embedding:
            self._embed = target.embedding.forward
        if not head.own_head:
            self._to_logits = target.head.forward

    def read(self, hidden: Tensor) -> Tensor:
        """Hidden states of a step, [T, any] as `Model.forward` gives them, to [T, hidden]."""
        states = (
            hidden[:, self._skipped : self._skipped + self._states] * self.settings.hidden_scale
        )
        if isinstance(self.settings.inputs, spec.JoinedAttention):
            states = self.fusion(states.contiguous())
        return states

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        hidden: Tensor,
        batch: AttentionBatch,
        cache: KVCache,
    ) -> Tensor:
        """Run a ragged step and write its KV to the head's layers of the cache.

        Args:
            tokens: int64 [T], each behind the token that its hidden state is of.
            positions: int64 [T] or [axes, T], of the hidden states.
            hidden: [T, hidden], from `read` or `carried`.
            batch: the row and the slot of each hidden state.
            cache: the target's, with these layers.

        Returns:
            The stream [T, hidden] behind the last layer.
        """
        cache.begin(batch, self.cached)
        plans = self.plan(batch, cache.groups)
        steps = self.contexts(positions, batch, plans)
        embed = self._embed or self.embedding
        assert embed is not None
        embedded: Tensor = embed(tokens, positions)
        x = self._fused(embedded, hidden)
        groups, views = cache.groups.of[self.cached], cache.views[self.cached]
        for block, group, pages in zip(self.blocks, groups, views, strict=True):
            if isinstance(block, Joined):
                x = block(embedded, hidden, steps[group], pages)
            else:
                x = block(x, steps[group], pages)
        return x

    def _fused(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        inputs = self.settings.inputs
        if isinstance(inputs, spec.JoinedAttention):
            return hidden
        if self.embedding_norm is not None:
            embedded = self.embedding_norm(embedded)
        if self.hidden_norm is not None:
            hidden = self.hidden_norm(hidden)
        pair = (hidden, embedded) if inputs.hidden_first else (embedded, hidden)
        fused: Tensor = self.fusion(torch.cat(pair, -1))
        return fused

    @torch.inference_mode()
    def logits(self, stream: Tensor) -> Tensor:
        """[R, hidden] of the stream to float32 [R, vocab] of the target."""
        normed = stream if self.norm is None else self.norm(stream)
        to_logits = self._to_logits or self.head
        assert to_logits is not None
        logits: Tensor = to_logits(normed)
        return spread(logits, self.token_ids, self.settings.target_vocab)

    @torch.inference_mode()
    def carried(self, stream: Tensor) -> Tensor:
        """The input of the next draft in place of a hidden state: [R, hidden]."""
        if self.settings.carries_normed and self.norm is not None:
            stream = self.norm(stream)
        return stream * self.settings.hidden_scale


def target_vocab(head: spec.LayerHead) -> int:
    """Tokens of the target of a head."""
    return head.target_vocab or head.vocab
