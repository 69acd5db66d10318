"""Quantised tensors on their way from a checkpoint to the layers that run them as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

from torch import Tensor

from baton_worker.kernels.quantized import Blocks
from baton_worker.layers.layer import Layer
from baton_worker.layers.linear import GatedLinear, Linear
from baton_worker.layers.moe import Experts

Quantize: TypeAlias = Literal["none", "int8", "int4"]

_KINDS: dict[Quantize, tuple[str | None, str | None]] = {
    "none": (None, None),
    "int8": ("int8", "int8"),
    "int4": ("int4_minimum", "int8"),
}
"""Kind of the gate and up products of feed-forwards and of experts, and of all other linear layers.
The former are half of a dense model's weights, and feel four bits least: what they get wrong passes
through a gate and a second product. Four bits in attention or in the down product cost a small
model several percent of perplexity."""


def choose_precision(layers: Iterable[Layer], quantize: Quantize) -> None:
    """Say which layers round their weights when they finish, and to what.

    Linear layers, experts and the language head do; embedding tables, norms and routers keep the
    precision of the model. So does a layer whose inner dimension is not a multiple of 32.
    """
    gated, other = _KINDS[quantize]
    for layer in layers:
        if isinstance(layer, GatedLinear | Experts):
            layer.quantised_as = gated
        elif isinstance(layer, Linear):
            layer.quantised_as = other


def as_floats(tensors: Iterable[tuple[str, Tensor | Blocks]]) -> Iterator[tuple[str, Tensor]]:
    """Everything dequantised, for who wants to compute with the plain weights."""
    for name, tensor in tensors:
        yield name, tensor if isinstance(tensor, Tensor) else tensor.dequantise()


class Taking:
    """Offers blocks to every layer; what nobody takes goes on as floats."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        self._layers = list(layers)
        self._owners = {name: layer for layer in self._layers for name, _ in layer.destinations()}
        self.taken = set[str]()
        """Names whose destinations need not be filled any more."""

    def __call__(
        self, tensors: Iterable[tuple[str, Tensor | Blocks]]
    ) -> Iterator[tuple[str, Tensor]]:
        """The tensors that are left, all of them floats."""
        for name, tensor in tensors:
            if isinstance(tensor, Tensor):
                yield name, tensor
                continue
            takers = [layer for layer in self._layers if layer.take(name, tensor)]
            if name in self._owners and self._owners[name] in takers:
                self.taken.add(name)
            else:
                yield name, tensor.dequantise()
