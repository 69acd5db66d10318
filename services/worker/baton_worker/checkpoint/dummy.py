"""Random weights in place of a checkpoint's: benchmarks of any size from a config.json alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from baton_worker.layers.layer import Layer

_DEVIATION = 0.02
"""Standard deviation of random weights: that of most models when their training begins."""
_NORM = "norm"


def random_weights(
    layers: Iterable[Layer], dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    """A tensor for every target of `layers`, which may be on the meta device.

    Matrices are normal, norms are ones, all other vectors zeros. A tensor depends on its name and
    shape, so all ranks and all workers have the same model.
    """
    targets = {name: target.shape for layer in layers for name, target in layer.weight_targets()}
    for name, shape in targets.items():
        yield name, _tensor(name, shape, dtype, device)


def _tensor(name: str, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    if len(shape) < 2:
        fill = torch.ones if _NORM in name.lower() else torch.zeros
        return fill(shape, dtype=dtype, device=device)
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])
    generator = torch.Generator(device).manual_seed(seed)
    empty = torch.empty(shape, dtype=dtype, device=device)
    return empty.normal_(0, _DEVIATION, generator=generator)
