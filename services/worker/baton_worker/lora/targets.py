"""Target layers of adapters: the linear layers of a model by module name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from baton_worker.checkpoint.unfuse import Unfuse
from baton_worker.kernels.lora import LoraKernel, LoraPair
from baton_worker.layers.linear import Linear
from baton_worker.models.decoder import Model
from baton_worker.spec import Decoder


class _Layer(NamedTuple):
    kernel: LoraKernel
    parts: tuple[str, ...]


class LoraTargets:
    """The layers of a model that take adapters.

    Args:
        model: built with `BuildContext.adapters`.
        spec: what it was built from.
    """

    def __init__(self, model: Model, spec: Decoder) -> None:
        self._layers = list[_Layer]()
        self.shapes = dict[str, tuple[int, int]]()
        """Module -> its rows and columns."""
        self.like: Tensor = torch.empty(0)
        """A tensor on the device and of the dtype of the products' inputs."""
        for layer in model.layers():
            if isinstance(layer, Linear) and layer.lora is not None:
                parts = layer.lora_parts
                self._layers.append(_Layer(layer.lora, tuple(parts)))
                self.shapes |= {name: (n, layer.in_features) for name, n in parts.items()}
                self.like = layer.like
        self._renames = [(re.compile(pattern), to) for pattern, to in spec.tensors.renames]
        self._unfuse = Unfuse(
            spec,
            {f"{n}.weight": torch.empty(shape, device="meta") for n, shape in self.shapes.items()},
        )

    def takes(self, module: str) -> bool:
        """True if a module of a checkpoint takes adapters."""
        parts = self._unfuse.parts(self._renamed(module))
        return all(name.removesuffix(".weight") in self.shapes for name in parts)

    def split(self, module: str, rows: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The modules of the model that a module of a checkpoint is, each with its share of a
        tensor [out_features, ...].

        Raises:
            ModelError: the rows are not those of its parts.
        """
        for name, part in self._unfuse.outputs(self._renamed(module), rows):
            yield name.removesuffix(".weight"), part

    def _renamed(self, module: str) -> str:
        """Its usual spelling."""
        name = f"{module}.weight"
        for pattern, to in self._renames:
            name = pattern.sub(to, name)
        return name.removesuffix(".weight")

    def put(self, slot: int, pairs: Mapping[str, LoraPair]) -> None:
        """Adapter number `slot` has these products from now on; between two steps."""
        for layer in self._layers:
            layer.kernel.put(slot, [pairs.get(name) for name in layer.parts])
