"""Splits stacked expert tensors into one tensor per expert and role, as views."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

from torch import Tensor

from baton.errors import ModelError
from baton_worker.checkpoint.row_reader import Rows
from baton_worker.kernels.mxfp4 import stack
from baton_worker.kernels.weight import ExpertStack, QuantizedWeight
from baton_worker.spec import (
    Decoder,
    ModalityMoe,
    Moe,
    ShortcutMoe,
    Stacked,
)
from baton_worker.spec.names import Names, placed

Whole: TypeAlias = Tensor | QuantizedWeight | Rows
"""A tensor that a layer may have as its own."""
Stored: TypeAlias = Whole | ExpertStack
"""A tensor as a checkpoint has it."""


class Unstack:
    """Renames tensors and splits stacked ones."""

    def __init__(self, spec: Decoder) -> None:
        self._spec = spec
        self._renames = [(re.compile(pattern), to) for pattern, to in spec.tensors.renames]
        names, layers = Names(spec.tensors.names), range(len(spec.layers))
        self._body = names("embedding").split(".")[0]
        self._corrections = {
            names.at(layer)("router_correction"): _corrected(names.at(layer), spec, layer)
            for layer in layers
        }
        self._rules = dict[str, tuple[Stacked, int]]()
        self._scales = dict[str, str]()
        for rule in spec.tensors.stacked:
            for layer in layers:
                source = placed(rule.source, layer)
                # If two layers share a tensor, the first has the experts.
                self._rules.setdefault(source, (rule, layer))
                if rule.scales is not None:
                    self._scales[placed(rule.scales, layer)] = source
        self._waiting = dict[str, Tensor]()

    def __call__(self, name: str, stored: Stored) -> Iterator[tuple[str, Whole]]:
        """Split a stored tensor; an MXFP4 tensor waits for its scales or blocks.

        Raises:
            ModelError: the number of experts differs from the spec's.
        """
        for pattern, to in self._renames:
            name = pattern.sub(to, name)
        name = self._whole_name(name)
        source = self._scales.get(name, name)
        if source in self._rules:
            yield from self._of_stack(name, source, stored)
        elif isinstance(stored, ExpertStack):
            yield name, stored.dequantise()
        elif name in self._corrections and isinstance(stored, Tensor):
            rows = stored if stored.ndim > 1 else stored[None]
            yield from zip(self._corrections[name], rows, strict=True)
        else:
            yield name, stored

    def _whole_name(self, name: str) -> str:
        """`layers.0.experts` of a body saved without its head is `model.layers.0.experts`."""
        whole = f"{self._body}.{name}"
        split = (self._rules, self._scales, self._corrections)
        return whole if any(whole in names for names in split) else name

    def _of_stack(self, name: str, source: str, stored: Stored) -> Iterator[tuple[str, Whole]]:
        if self._rules[source][0].scales is None:
            yield from self._taken_apart(source, stored)
        elif source in self._waiting:
            other = self._waiting.pop(source)
            assert isinstance(stored, Tensor)
            blocks, scales = (stored, other) if name == source else (other, stored)
            yield from self._taken_apart(source, stack(blocks, scales))
        else:
            assert isinstance(stored, Tensor)
            self._waiting[source] = stored

    def _taken_apart(self, source: str, stored: Stored) -> Iterator[tuple[str, Whole]]:
        rule, layer = self._rules[source]
        names = Names(self._spec.tensors.names).at(layer)
        for expert, share in enumerate(self._shares(source, stored)):
            for role, part in zip(rule.parts, _parts(rule, share), strict=True):
                yield f"{names(role).format(expert=expert)}.{rule.suffix}", part

    def _shares(self, source: str, stored: Stored) -> Iterator[Tensor | QuantizedWeight]:
        """The part of each expert of a stored tensor."""
        rule, layer = self._rules[source]
        ffn = self._spec.layers[layer][1]
        moe = ffn.branch if isinstance(ffn, ShortcutMoe) else ffn
        count = moe.router.num_experts if isinstance(moe, Moe) else 0
        zero = moe.router.zero_experts if isinstance(moe, Moe) else 0
        size = stored.shape[0]
        if rule.flat and count and size % count == 0 and not isinstance(stored, ExpertStack | Rows):
            rows = size // count
            yield from (stored[first : first + rows] for first in range(0, size, rows))
        # Some checkpoints have rows for zero experts, too.
        elif size in (count, count + zero) and isinstance(stored, Tensor | ExpertStack):
            yield from (stored[expert] for expert in range(count))
        else:
            raise ModelError(
                f"Tensor {source} holds {size} experts in the checkpoint, "
                f"but the config wants {count}."
            )


def _corrected(names: Names, spec: Decoder, layer: int) -> list[str]:
    """The rows of a layer's correction: of texts, and of images that have a router."""
    both = isinstance(spec.layers[layer][1], ModalityMoe)
    roles = ("router_correction", *(("vision_router_correction",) if both else ()))
    return [names(role) for role in roles]


def _parts(rule: Stacked, share: Tensor | QuantizedWeight) -> list[Tensor | QuantizedWeight]:
    if rule.transposed or (rule.inputs is not None and share.shape[-1] != rule.inputs):
        # Groups run along the other axis of a quantised weight.
        share = (share if isinstance(share, Tensor) else share.dequantise()).T
    count = len(rule.parts)
    if rule.interleaved:
        return [share[part::count] for part in range(count)]
    rows = -(-share.shape[0] // count)
    return [share[first : first + rows] for first in range(0, share.shape[0], rows)]
