"""Mixtures with experts for texts and others for images."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Bare
from baton_worker.layers.moe.moe import Moe


class ModalityMoe(Bare):
    """See `spec.ModalityMoe`.

    Both mixtures see every token and take their own, so that the shapes of a step do not depend on
    what its tokens are: it can be captured, and every expert-parallel rank takes part in both.
    """

    def __init__(self, settings: spec.ModalityMoe, hidden: int, context: BuildContext) -> None:
        super().__init__()
        self.text = Moe(settings.text, hidden, context)
        vision = replace(context, name=lambda role: context.name(f"vision_{role}"))
        self.vision = Moe(settings.vision, hidden, vision)

    def forward(self, x: Tensor, vision: Tensor | None, residual: Tensor | None) -> Tensor:
        """[T, hidden] to [T, hidden], plus `residual`; bool [T] marks the tokens of `vision`; None
        marks none."""
        if vision is None:
            vision = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        out: Tensor = self.vision(x, self.text(x, residual, ~vision), vision)
        return out
