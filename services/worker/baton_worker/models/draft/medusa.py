"""Medusa (Cai et al. 2024, arXiv:2401.10774): a language head of its own for every next token."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.invariant import SILU
from baton_worker.layers.layer import Bare
from baton_worker.layers.linear import Linear
from baton_worker.layers.lm_head import Head
from baton_worker.models.draft.state_head import StateHead, spread


class ResidualBlock(Bare):
    """x + silu(W x), once for each layer."""

    def __init__(self, heads: spec.MedusaHeads, number: int, context: BuildContext) -> None:
        super().__init__()
        size = heads.hidden
        self.linears = nn.ModuleList(
            Linear(size, {f"blocks.{number}.layers.{layer}": size}, context, bias=heads.bias)
            for layer in range(heads.num_layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[R, hidden] to [R, hidden]."""
        for linear in self.linears:
            x = x + SILU(linear(x))
        return x


class Medusa(StateHead):
    """See `spec.MedusaHeads`. Number n of the heads predicts the token n + 2 places
    behind the position of the hidden state, from that state alone."""

    def __init__(self, heads: spec.MedusaHeads, context: BuildContext) -> None:
        super().__init__()
        self.num_drafts = heads.num_heads
        self.token_ids: Tensor | None = None
        """int64 [heads.vocab]: the target's token of each of the heads'; None: they are the same.
        Set when the weights are."""
        self._vocab = heads.target_vocab
        numbers = range(heads.num_heads)
        self.blocks = nn.ModuleList(ResidualBlock(heads, number, context) for number in numbers)
        self.heads = nn.ModuleList(
            Head(spec.Head(), heads.hidden, heads.vocab, _as(context, f"lm_heads.{number}"))
            for number in numbers[: 1 if heads.shared_head else None]
        )

    def forward(self, state: Tensor, tokens: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """See `StateHead`. The state stays what it is."""
        logits = self.heads[min(depth, len(self.heads) - 1)](self.blocks[depth](state))
        return spread(logits, self.token_ids, self._vocab), state


def _as(context: BuildContext, name: str) -> BuildContext:
    """The context of a layer whose only role has this name."""
    return replace(context, name=lambda role: name)
