"""MLP speculator (Wertheimer et al. 2024, arXiv:2404.19124): a recurrent state that starts as the
target's hidden state."""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned, Table
from baton_worker.layers.invariant import GELU
from baton_worker.layers.linear import Linear
from baton_worker.layers.lm_head import Head
from baton_worker.layers.norm import norm
from baton_worker.models.draft.state_head import StateHead

_NORM = spec.Norm(1e-6)


class Stage(nn.Module):
    """Embedding, norm and head of one draft; `number` is that of their tensors."""

    def __init__(self, speculator: spec.MlpSpeculator, number: int, context: BuildContext) -> None:
        super().__init__()
        inner, vocab = speculator.inner, speculator.vocab
        self.embedding = Table(vocab, inner, f"emb.{number}", context)
        self.norm = norm(_NORM, inner, f"ln.{number}", context)
        self.shift = Learned((inner,), f"ln.{number}.bias", context)
        head_site = replace(context, name=lambda role: f"head.{number}")
        self.head = Head(spec.Head(), inner, vocab, head_site)


class MlpSpeculatorModel(StateHead):
    """See `spec.MlpSpeculator`."""

    def __init__(self, speculator: spec.MlpSpeculator, context: BuildContext) -> None:
        super().__init__()
        self.num_drafts, inner = speculator.num_heads, speculator.inner
        # Tied stages share all but the first projection, which reads the target's width.
        stages, projections = (1, 2) if speculator.tied else (self.num_drafts, self.num_drafts)
        self.input_norm = None
        if speculator.scale_input:
            self.input_norm = norm(replace(_NORM, scaled=False), speculator.hidden, "ln0", context)
        self.projections = nn.ModuleList(
            Linear(inner if number else speculator.hidden, {f"proj.{number}": inner}, context)
            for number in range(projections)
        )
        self.stages = nn.ModuleList(Stage(speculator, number, context) for number in range(stages))
        weight = speculator.state_weight
        self._token_weight = math.sqrt((1 - weight**2) * (inner / 2)) / weight

    def forward(self, state: Tensor, tokens: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """See `StateHead`."""
        if depth == 0 and self.input_norm is not None:
            state = self.input_norm(state) / math.sqrt(2)
        stage = self.stages[min(depth, len(self.stages) - 1)]
        assert isinstance(stage, Stage)
        state = self.projections[min(depth, len(self.projections) - 1)](state)
        state = state + self._token_weight * stage.embedding(tokens)
        state = GELU(stage.norm(state) + stage.shift())
        logits: Tensor = stage.head(state)
        return logits, state
