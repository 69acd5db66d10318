"""What every layer with weights shares: where it is built, and what fills it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Site:
    """Where layers are built: their device and dtype, and the checkpoint's name for each role."""

    device: torch.device
    dtype: torch.dtype
    name: Callable[[str], str]

    def empty(self, *shape: int) -> nn.Parameter:
        """An uninitialised parameter; the loader fills it or refuses the checkpoint."""
        data = torch.empty(shape, dtype=self.dtype, device=self.device)
        return nn.Parameter(data, requires_grad=False)


class Layer(nn.Module):
    """A layer brings its own loading: the loader knows neither fusion nor names."""

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        """Checkpoint tensor name and the parameter, or the rows of one, that it fills."""
        raise NotImplementedError

    def finish(self) -> None:
        """Called once, after every destination is filled."""
