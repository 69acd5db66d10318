"""What every layer with weights shares: where it is built, and what fills it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from baton_worker.kernels.pages import Codes
from baton_worker.kernels.quantized import Blocks


@dataclass(frozen=True, slots=True)
class Site:
    """Where layers are built: their device and dtype, the checkpoint's name for each role, and
    what pages hold in place of numbers of that dtype."""

    device: torch.device
    dtype: torch.dtype
    name: Callable[[str], str]
    codes: Codes | None = None
    scaled: bool = False
    """Whether the checkpoint has the scales of these codes."""

    def empty(self, *shape: int) -> nn.Parameter:
        """An uninitialised parameter; the loader fills it or refuses the checkpoint."""
        data = torch.empty(shape, dtype=self.dtype, device=self.device)
        return nn.Parameter(data, requires_grad=False)


class Bare(nn.Module):
    """A module whose call is its `forward` and nothing else.

    It has no hooks. Looking for them in the few hundred calls of a step costs a quarter of a
    millisecond, of the ten that a small model takes for one token on a CPU.
    """

    def __call__(self, *args: Any) -> Any:
        """See `forward` of each class."""
        return self.forward(*args)


class Layer(Bare):
    """A layer brings its own loading: the loader knows neither fusion nor names."""

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        """Checkpoint tensor name and the parameter, or the rows of one, that it fills."""
        raise NotImplementedError

    def take(self, name: str, blocks: Blocks) -> bool:
        """Offered a quantised checkpoint tensor: take it in place of its destination, or leave it.

        A layer may take a tensor that it shares with the layer whose destination it is.
        """
        return False

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that this layer holds beside its parameters."""
        return 0

    def finish(self) -> None:
        """Called once, after every destination is filled."""
