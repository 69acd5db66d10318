"""Experts of their own for the tokens of media: see `spec.ModalityMoe`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.mlp import Glu
from baton_worker.layers.moe.moe import Moe


class ModalityMoe(Layer):
    """Each token passes through the mixture of its kind, and through the shared experts."""

    capture_blocker = "the tokens of media are counted on the host"

    def __init__(self, settings: spec.ModalityMoe, hidden: int, site: BuildContext) -> None:
        super().__init__()
        media = replace(site, name=lambda role: site.name(f"media_{role}"))
        shared = replace(site, name=lambda role: site.name(f"shared_{role}"))
        self.text, self.media = Moe(settings.text, hidden, site), Moe(settings.media, hidden, media)
        self.shared = None if settings.shared is None else Glu(settings.shared, hidden, shared)
        self._ids = torch.tensor(settings.tokens, device=site.device)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """None of its own."""
        return iter(())

    def forward(self, x: Tensor, tokens: Tensor, residual: Tensor | None) -> Tensor:
        """[T, hidden] of these tokens, int64 [T], to [T, hidden], plus `residual`."""
        out = self._routed(x, torch.isin(tokens, self._ids))
        if self.shared is not None:
            out = self.shared(x, out)
        return out if residual is None else residual + out

    def _routed(self, x: Tensor, is_media: Tensor) -> Tensor:
        media, text = is_media.nonzero()[:, 0], (~is_media).nonzero()[:, 0]
        if not len(media):
            out: Tensor = self.text(x, None)
            return out
        out = torch.empty_like(x)
        for experts, places in ((self.text, text), (self.media, media)):
            if len(places):
                out.index_copy_(0, places, experts(x.index_select(0, places), None))
        return out
