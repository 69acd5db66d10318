"""Draft heads that read one hidden state of a sequence and keep no KV."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from baton_worker.layers.layer import Layer


class StateHead(nn.Module):
    """Base of these heads: see `forward`."""

    num_drafts: int
    """Most drafts behind a hidden state."""

    def layers(self) -> list[Layer]:
        """Every layer that holds weights."""
        return [module for module in self.modules() if isinstance(module, Layer)]

    def forward(self, state: Tensor, tokens: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """Logits of draft number `depth`, from 0.

        Args:
            state: [R, any]; for the first draft the target's last hidden states [R, hidden] of the
                positions before the newest tokens, then what the last call has returned.
            tokens: int64 [R], the newest tokens, drafts included.
            depth: below `num_drafts`.

        Returns:
            float32 [R, vocab] of the target, and the next state.
        """
        raise NotImplementedError


def spread(logits: Tensor, token_ids: Tensor | None, vocab: int) -> Tensor:
    """Logits of a head's own vocabulary at the target's tokens `token_ids`, int64: others cannot be
    drawn. None: the vocabularies are the same."""
    if token_ids is None:
        return logits
    whole = logits.new_full((len(logits), vocab), -torch.inf)
    return whole.index_copy_(1, token_ids, logits)
