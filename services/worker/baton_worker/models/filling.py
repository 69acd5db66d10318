"""Which weights are still awaited; a layer prepares its own as soon as it has them all.

So a model is never in memory twice: what a layer packs is gone before the next layers are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from baton_worker.allocator import release_freed_memory
from baton_worker.layers.layer import Layer
from baton_worker.parallel.slices import Destination

_KEPT = 1 << 20
"""Bytes of replaced weights that may wait in the heap before they are handed back."""


class Filling:
    """The destinations of a model while a loader fills them.

    Args:
        layers: all layers, in execution order.
        wanted: destination of every checkpoint tensor. Those of a layer are dropped when it is
            complete: nothing may hold on to a weight that its layer replaces.
    """

    def __init__(self, layers: Iterable[Layer], wanted: dict[str, Destination]) -> None:
        self.wanted, self.missing = wanted, set(wanted)
        self._replaced = 0
        self._open = {layer: set(layer.waits_for()) for layer in layers}
        self._waiting = defaultdict[str, list[Layer]](list)
        for layer, names in self._open.items():
            for name in names:
                self._waiting[name].append(layer)

    def done(self, name: str) -> None:
        """The tensor of this name is where it belongs."""
        self.missing.discard(name)
        waiting = self._waiting.pop(name, [])
        for layer in waiting:
            self._open[layer].discard(name)
        ready = [layer for layer in waiting if not self._open[layer]]
        for layer in ready:
            self._let_go(layer)
        for layer in ready:
            del self._open[layer]
            layer.finish()
        if self._replaced > _KEPT:
            release_freed_memory()
            self._replaced = 0

    def _let_go(self, layer: Layer) -> None:
        for name, weight in layer.destinations():
            self._replaced += weight.nbytes
            self.wanted.pop(name, None)

    def end(self) -> None:
        """Every tensor has come: layers that wait for none prepare themselves too."""
        for layer in self._open:
            layer.finish()
        self._open.clear()
