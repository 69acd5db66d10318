"""Tracks missing weights; a layer processes its weights as soon as it has them all.

A model is never in memory twice: a layer's original weights are freed before the next layers are
read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Protocol

from torch import Tensor

from baton.errors import ModelError
from baton_worker.checkpoint.quantized_loading import (
    QuantizedLoader,
    choose_precision,
)
from baton_worker.checkpoint.row_reader import Rows, copy_rows
from baton_worker.checkpoint.unfuse import Unfuse
from baton_worker.checkpoint.unstack import Stored, Unstack, Whole
from baton_worker.config import Quantize
from baton_worker.distributed.shard_weights import (
    Destination,
    Parts,
    WeightShard,
    passed_over,
    sliced,
    slices,
)
from baton_worker.kernels.weight import QuantizedWeight
from baton_worker.layers.layer import Layer
from baton_worker.platform.malloc import release_freed_memory
from baton_worker.spec import Decoder
from baton_worker.spec.names import Names, is_recomputed

_LISTED = 8
"""Maximum number of tensor names in an error message."""
_KEPT = 1 << 20
"""Bytes of freed weights that may stay in the heap before it is trimmed."""


class WeightFiller:
    """The targets of a model while they are filled.

    Args:
        layers: all layers, in execution order.
        wanted: target of every checkpoint tensor. Those of a layer are dropped when it is
            complete, so that replaced weights are freed.
        processed: called with each layer once it has processed its weights.
    """

    def __init__(
        self,
        layers: Iterable[Layer],
        wanted: dict[str, Destination],
        processed: Callable[[Layer], None] = lambda layer: None,
    ) -> None:
        self.wanted, self.missing, self._processed = wanted, set(wanted), processed
        self._replaced = 0
        self._open = {layer: set(layer.awaited_weights()) for layer in layers}
        self._waiting = defaultdict[str, list[Layer]](list)
        for layer, names in self._open.items():
            for name in names:
                self._waiting[name].append(layer)

    def done(self, name: str) -> None:
        """Mark a tensor as loaded."""
        self.missing.discard(name)
        waiting = self._waiting.pop(name, [])
        for layer in waiting:
            self._open[layer].discard(name)
        ready = [layer for layer in waiting if not self._open[layer]]
        for layer in ready:
            self._let_go(layer)
        for layer in ready:
            del self._open[layer]
            layer.process_weights_after_loading()
            self._processed(layer)
        if self._replaced > _KEPT:
            release_freed_memory()
            self._replaced = 0

    def _let_go(self, layer: Layer) -> None:
        for name, weight in layer.weight_targets():
            self._replaced += weight.nbytes
            self.wanted.pop(name, None)

    def end(self) -> None:
        """Process the layers that await no tensor."""
        for layer in self._open:
            layer.process_weights_after_loading()
            self._processed(layer)
        self._open.clear()


class HasLayers(Protocol):
    """A model, or a part of one."""

    def layers(self) -> list[Layer]:
        """Every layer that holds weights, in execution order."""
        ...


def fill(
    model: HasLayers,
    tensors: Iterator[tuple[str, Stored]],
    spec: Decoder,
    quantize: Quantize = "none",
    parts: Parts | None = None,
    *,
    whole: bool = True,
    elsewhere: Sequence[Layer] = (),
    processed: Callable[[Layer], None] = lambda layer: None,
) -> None:
    """Copy each tensor to its target and let every layer process its weights; `processed` is then
    called with it. With `parts` this rank takes a slice of each. Unless the model is `whole`,
    tensors of others are passed over; so are those of the layers `elsewhere`, which have no memory
    here.

    Raises:
        ModelError: a tensor is missing, unexpected or of the wrong shape.
        SettingsError: its blocks cannot be split this way.
    """
    layers = model.layers()
    choose_precision(layers, quantize)
    destinations: dict[str, Destination] = (
        dict(pair for layer in layers for pair in layer.weight_targets())
        if parts is None
        else dict(slices(layers, parts))
    )
    destinations = passed_over(elsewhere) | destinations
    filling = WeightFiller(layers, destinations, processed)
    leftover = _copy_all(filling, layers, tensors, spec)
    if filling.missing or (leftover and whole):
        raise ModelError(
            "The checkpoint does not fit its architecture: "
            f"{_listed('missing', filling.missing)}; {_listed('not used', leftover)}."
            f"{_prefixed(filling.missing, leftover)}"
        )
    filling.end()


def _copy_all(
    filling: WeightFiller,
    layers: list[Layer],
    tensors: Iterator[tuple[str, Stored]],
    spec: Decoder,
) -> list[str]:
    """Fill the targets; returns the names of unused tensors."""
    destinations, leftover = filling.wanted, list[str]()
    unstack, unfuse = Unstack(spec), Unfuse(spec, destinations)
    taking = QuantizedLoader(
        layers, partial(sliced, destinations), filling.done, partial(_fills, destinations)
    )
    whole = (part for stored in tensors for part in unstack(*stored))
    parts = (part for fused in whole for part in unfuse(*fused))
    for name, tensor in taking(_wanted_here(parts, filling)):
        if name in destinations:
            _copy(name, tensor, destinations)
            filling.done(name)
        elif not _may_stay_unread(name, tensor, spec):
            leftover.append(name)
    return leftover


def _wanted_here(
    tensors: Iterable[tuple[str, Whole]], filling: WeightFiller
) -> Iterator[tuple[str, Whole]]:
    """Skip tensors of other ranks only, such as their experts, before they are converted."""
    for name, tensor in tensors:
        if _is_elsewhere(filling.wanted.get(name)):
            filling.done(name)
        else:
            yield name, tensor


def _is_elsewhere(destination: Destination | None) -> bool:
    # A function, since a generator's variable would keep the replaced weight alive.
    return isinstance(destination, WeightShard) and destination.elsewhere


def _may_stay_unread(name: str, tensor: Tensor, spec: Decoder) -> bool:
    # Some tools write a zero bias for every module that they quantise.
    if name.endswith(".bias") and not tensor.any():
        return True
    names = Names(spec.tensors.names)
    tied_head = spec.head.tied and name == f"{names('head')}.weight"
    # Of a body saved without its head, names lack their first part.
    whole = f"{names('embedding').partition('.')[0]}.{name}"
    unused = name.startswith(spec.tensors.unused) or whole.startswith(spec.tensors.unused)
    return is_recomputed(name) or tied_head or unused


def _copy(name: str, tensor: Tensor, destinations: Mapping[str, Destination]) -> None:
    if tensor.shape != destinations[name].shape:
        raise ModelError(
            f"Tensor {name} is {list(tensor.shape)} in the checkpoint, "
            f"but the config wants {list(destinations[name].shape)}."
        )
    if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
        raise ModelError(
            f"Tensor {name} is {tensor.dtype}, but the config says nothing of quantised weights. "
            "Its quantization_config names the method."
        )
    copy_rows(destinations[name], tensor)


def _fills(
    destinations: Mapping[str, Destination], name: str, weight: QuantizedWeight | Rows
) -> bool:
    """Fill a target by rows. False if it does not exist yet: the weight is then unstacked or
    rejected later."""
    fits = name in destinations and destinations[name].shape == weight.shape
    if fits:
        copy_rows(destinations[name], weight)
    return fits


def _prefixed(missing: set[str], leftover: list[str]) -> str:
    """What to do if all names begin with the same that they should not begin with."""
    for name, one in product(leftover[:1], missing):
        prefix = name.removesuffix(one)
        if prefix != name and all(other.removeprefix(prefix) in missing for other in leftover):
            return f" Save it again without the {prefix!r} that its names begin with."
    return ""


def _listed(what: str, names: set[str] | list[str]) -> str:
    some = sorted(names)[:_LISTED]
    rest = f" and {len(names) - len(some)} more" if len(names) > len(some) else ""
    return f"{what}: {', '.join(some) or 'none'}{rest}"
