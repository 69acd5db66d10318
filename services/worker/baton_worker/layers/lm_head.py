"""The language head with its transforms of the logits."""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor

from baton_worker import spec
from baton_worker.kernels.weight import QuantizedWeight
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.invariant import tanh
from baton_worker.layers.linear import LanguageHead, Shared

NEVER = -1e30
"""The logit of a token that is never sampled; finite, for others are a failure."""


class Head(LanguageHead):
    """Logits of a `spec.Head`. A tied head shares the weight of the embedding table."""

    def __init__(
        self,
        settings: spec.Head,
        hidden: int,
        vocab: int,
        context: BuildContext,
        *,
        tied_to: Shared | None = None,
    ) -> None:
        super().__init__(hidden, vocab, context, tied_to=tied_to)
        self._settings = settings
        if settings.unit_rows:
            self.lora = None  # The rows of a sum are not those of its parts.
        self._bias_name = context.name("head")
        self.logit_bias = context.empty(vocab) if settings.bias else None

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The weight, unless the embedding fills it, and the bias."""
        for name, rows in super().weight_targets():
            unfilled = 0 if self._settings.filled else self._settings.unsaid
            yield name, rows[: len(rows) - unfilled]
        if self.logit_bias is not None:
            yield f"{self._bias_name}.bias", self.logit_bias

    def load_quantized(self, name: str, weight: QuantizedWeight) -> bool:
        """Like any linear layer, unless the rows must be changed first."""
        return not self._settings.unit_rows and super().load_quantized(name, weight)

    def process_weights_after_loading(self) -> None:
        """Normalise rows (NormHead, Baichuan 2, arXiv:2309.10305), then pack like any linear
        layer."""
        if self._settings.unsaid and self.weight is not None:
            self.weight[-self._settings.unsaid :] = 0
        if self._settings.unit_rows and self.weight is not None:
            self.weight.copy_(F.normalize(self.weight))
        super().process_weights_after_loading()
        self.single_use = self.single_use or self._settings.unit_rows

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[R, hidden] to float32 logits [R, vocab]."""
        logits = super().forward(x, residual)
        if self.logit_bias is not None:
            logits = logits + self.logit_bias
        if self._settings.scale != 1.0:
            logits = logits * self._settings.scale
        softcap = self._settings.softcap
        if softcap is not None:
            logits = softcap * tanh(logits / softcap)
        if self._settings.unsaid:
            logits[:, -self._settings.unsaid :] = NEVER
        return logits
