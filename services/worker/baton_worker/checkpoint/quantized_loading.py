"""Passes quantised tensors from a checkpoint to the layers that run them as stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from torch import Tensor

from baton.logs import logger
from baton_worker.checkpoint.row_reader import Rows
from baton_worker.checkpoint.unstack import Stored, Whole
from baton_worker.config import Quantize
from baton_worker.kernels.cpu.int8_linear import Int8Weight
from baton_worker.kernels.linear import has_kernel
from baton_worker.kernels.weight import QuantizedWeight
from baton_worker.layers.embedding import Table
from baton_worker.layers.layer import Layer
from baton_worker.layers.linear import GatedLinear, Linear
from baton_worker.layers.moe.moe import Experts

log = logger(__name__)


class _Kinds(NamedTuple):
    """Kinds of a scheme; None keeps floats."""

    gated: str | None
    """Of the gate and up products of feed-forwards."""
    experts: str | None
    other: str | None
    """Of all other linear layers."""


_KINDS: dict[Quantize, _Kinds] = {
    "none": _Kinds(None, None, None),
    "int8": _Kinds("int8", "int8", "int8"),
    "int4": _Kinds("int4_minimum", "int4_minimum", "int8"),
    "fp8": _Kinds("fp8", "fp8", "fp8"),
    "mxfp4": _Kinds("mxfp4", "mxfp4", "int8"),
    "nf4": _Kinds("nf4", "nf4", "nf4"),
    "experts_int8": _Kinds(None, "int8", None),
}
"""Gate and up products are half of a dense model's weights and the least sensitive to four bits:
their error passes through a gate and a second product. Four bits in attention or down products cost
a small model several percent of perplexity."""


def kinds(quantize: Quantize) -> set[str]:
    """The kinds of `kernels.quantized_weights.KINDS` used for quantisation."""
    return {kind for kind in _KINDS[quantize] if kind is not None}


def choose_precision(layers: Iterable[Layer], quantize: Quantize) -> None:
    """Set the kind to which each layer quantises its weights after loading.

    This applies, by scheme, to linear layers, experts and the language head; embedding tables,
    norms and routers keep the model's dtype, as do layers whose inner dimension is not a multiple
    of 32.
    """
    kinds = _KINDS[quantize]
    for layer in layers:
        if isinstance(layer, GatedLinear):
            layer.quantised_as = kinds.gated
        elif isinstance(layer, Experts):
            layer.quantised_as = kinds.experts
        elif isinstance(layer, Linear):
            layer.quantised_as = kinds.other


def as_floats(tensors: Iterable[tuple[str, Stored]]) -> Iterator[tuple[str, Tensor]]:
    """Dequantise every tensor."""
    for name, tensor in tensors:
        yield name, tensor if isinstance(tensor, Tensor) else tensor.dequantise()


class QuantizedLoader:
    """Offers quantised weights to every layer and dequantises those that no layer takes. On a CPU
    they are first converted to blocks if that is lossless.

    Args:
        layers: the layers that may take weights.
        cut: the layers' slice of a named weight.
        took: called with names whose targets need not be filled.
        fills: fills the target of a weight that no layer takes; False if it cannot.
    """

    def __init__(
        self,
        layers: Iterable[Layer],
        cut: Callable[[str, QuantizedWeight], QuantizedWeight] = lambda name, weight: weight,
        took: Callable[[str], None] = lambda name: None,
        fills: Callable[[str, QuantizedWeight | Rows], bool] = lambda name, weight: False,
    ) -> None:
        self._cut, self._took, self._fills = cut, took, fills
        self._owners = dict[str, Layer]()
        self._takers = defaultdict[str, list[Layer]](list)
        for layer in layers:
            self._owners |= {name: layer for name, _ in layer.weight_targets()}
            for name in layer.awaited_weights() if layer.like is not None else ():
                self._takers[name].append(layer)
        self._packed, self._tables, self._widened = 0, 0, list[str]()

    def __call__(self, tensors: Iterable[tuple[str, Whole]]) -> Iterator[tuple[str, Tensor]]:
        """The remaining tensors, all of them floats."""
        for name, tensor in tensors:
            if isinstance(tensor, Tensor):
                yield name, tensor
            elif self._is_taken(name, tensor) or self._fills(name, tensor):
                self._took(name)
            else:
                yield name, tensor.dequantise()
        self._report()

    def _is_taken(self, name: str, weight: QuantizedWeight | Rows) -> bool:
        """Whether the layer that owns the weight takes it; other layers may also take it."""
        if isinstance(weight, Rows):
            return False
        part = self._offered(name, weight)
        takers = list[Layer]()
        if part is not None:
            takers = [layer for layer in self._takers[name] if layer.load_quantized(name, part)]
        is_taken = name in self._owners and self._owners[name] in takers
        if is_taken:
            self._packed += 1
        elif isinstance(self._owners.get(name), Table):
            self._tables += 1
            self._packed += bool(takers)
        else:
            self._widened.append(name)
        return is_taken

    def _offered(self, name: str, weight: QuantizedWeight) -> QuantizedWeight | None:
        """The layers' slice of a weight, in a form that they may run; None if no kernel does."""
        layer = next(iter(self._takers.get(name, ())), None)
        like = None if layer is None else layer.like
        if layer is None or like is None:
            return None
        if isinstance(weight, Int8Weight) and not layer.int8_inputs:
            weight = weight.stored
        if like.device.type == "cpu":
            weight = weight.blocks() or weight
        return self._cut(name, weight) if has_kernel(weight, like) else None

    def _report(self) -> None:
        if not (self._packed or self._tables or self._widened):
            return
        log.info("%d quantised weights run as packed as they are", self._packed)
        if self._tables:
            log.info("%d quantised tables are looked up as floats", self._tables)
        if self._widened:
            log.warning(
                "%d quantised weights are dequantised, %s the first: no kernel here runs them",
                len(self._widened),
                self._widened[0],
            )
