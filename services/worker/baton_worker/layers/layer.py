"""What every layer with weights shares: where it is built, and what fills it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from baton_worker.attention.context_parallel import Peers
from baton_worker.kernels.kv_pages import KVCodes
from baton_worker.kernels.linear import Stored
from baton_worker.kernels.page_layout import Layout


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Where layers are built."""

    device: torch.device
    dtype: torch.dtype
    name: Callable[[str], str] = str
    """The checkpoint's name of each role: the role itself, where nothing else is known."""
    codes: KVCodes | None = None
    """What pages hold in place of numbers of the dtype."""
    scaled: bool = False
    """Whether the checkpoint has the scales of these codes."""
    layout: Layout = Layout.NHD
    """The order of what pages hold."""
    peers: Peers | None = None
    """Who has other parts of the model."""

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

    @property
    def capture_blocker(self) -> str | None:
        """Why a step cannot be captured (see `graphs`) with it, as half a sentence; None if it can:
        what it does depends on shapes, and it waits for nothing."""
        return None

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """Checkpoint tensor name and the parameter, or the rows of one, that it fills."""
        raise NotImplementedError

    def load_quantized(self, name: str, weight: Stored) -> bool:
        """Offered a quantised checkpoint tensor: take it in place of its destination, or leave it.

        A layer may take a tensor that it shares with the layer whose destination it is.
        """
        return False

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that this layer holds beside its parameters."""
        return 0

    def awaited_weights(self) -> Iterator[str]:
        """Checkpoint tensors that must be in place before `finish` is called."""
        return (name for name, _ in self.weight_targets())

    def process_weights_after_loading(self) -> None:
        """Called once, after every destination is filled."""
