"""Random weights for layers that are tested alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from baton_worker.layers.layer import Layer


def fill(layer: nn.Module) -> dict[str, Tensor]:
    """Fill every weight of a layer and return copies by name, shaped as in a checkpoint."""
    return {
        name: rows.copy_(0.4 * torch.randn(rows.shape)).clone()
        for part in layer.modules()
        if isinstance(part, Layer)
        for name, rows in part.weight_targets()
    }
