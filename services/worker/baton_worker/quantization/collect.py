"""Collects the tensors of a quantised weight in any storage order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.kernels.weight import ExpertStack, QuantizedWeight

Parts: TypeAlias = Mapping[str, Tensor]
"""The tensors of a weight by their suffix after the module name."""
Collected: TypeAlias = Tensor | QuantizedWeight | ExpertStack
"""A stored tensor, or what several of them mean together."""
_SPELLINGS = {"weight_scale_inv": "weight_scale", "activation_scale": "input_scale"}
_FLOAT8_PARTS = ("weight", "weight_scale", "_weight_qdata")
_INSIDE = ".weight."
"""Before a part of a weight whose codes are named as the weight is."""
_STACKED = "_scale_inv"
"""Suffix of the scales of a tensor that holds all experts."""


@dataclass(frozen=True, slots=True)
class Format:
    """Storage format of a quantised weight."""

    parts: frozenset[str]
    """Required tensors of a weight. If "weight" is one of them, a "weight" of more than one byte
    per number is unquantised."""
    read: Callable[[Parts], Collected]
    """Decodes the parts; floats where no packed weight has the same numbers. May raise a
    ModelError."""
    unread: frozenset[str] = frozenset()
    """Ignored tensors."""
    others: tuple[frozenset[str], ...] = ()
    """Other sets of tensors that make a weight; none holds another, or `parts`."""

    @property
    def known(self) -> frozenset[str]:
        """Every tensor that belongs to a weight."""
        return self.parts.union(self.unread, *self.others)

    def is_whole(self, parts: Parts) -> bool:
        """Whether these tensors make a weight."""
        return parts.keys() == self.parts or parts.keys() in self.others


Formats: TypeAlias = Callable[[str], Format | None]
"""Module name to its format; None if the module is not quantised."""


class CollectedWeights:
    """Turns stored tensors into weights.

    Args:
        formats: the formats of the checkpoint.
    """

    def __init__(self, formats: Formats) -> None:
        self._formats = formats
        self._waiting = defaultdict[str, dict[str, Tensor]](dict)

    def __call__(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Collected]]:
        """Yield the weight that a stored tensor completes, if any.

        Raises:
            ModelError: the parts are inconsistent or not supported.
        """
        weight, part = _place(name, tensor)
        form = self._formats(weight.removesuffix(".weight"))
        if form is None or part not in form.known or _is_plain(part, tensor):
            yield name, tensor
            return
        if part in form.unread:
            return
        parts = self._waiting[weight]
        parts[part] = tensor
        if form.is_whole(parts):
            yield weight, _read(form, weight, self._waiting.pop(weight))

    def end(self) -> None:
        """Check that no weight is incomplete.

        Raises:
            ModelError: a weight lacks tensors.
        """
        for weight, parts in self._waiting.items():
            form = self._formats(weight.removesuffix(".weight"))
            lacking = ", ".join(sorted(form.parts - parts.keys())) if form else ""
            raise ModelError(
                f"{weight} is quantised, and the checkpoint lacks a part of it: {lacking}."
            )


def _place(name: str, tensor: Tensor) -> tuple[str, str]:
    """The weight name used by the layers, and the part that a tensor is."""
    module, inside, part = name.partition(_INSIDE)
    if inside:
        return f"{module}.weight", f"weight.{part}"
    module, _, part = name.rpartition(".")
    part = _SPELLINGS.get(part, part)
    if part.endswith(_STACKED):
        return name.removesuffix(_STACKED), "weight_scale"
    if tensor.dtype is torch.float8_e4m3fn and part not in _FLOAT8_PARTS:
        return name, "weight"
    return f"{module}.weight", part


def _is_plain(part: str, tensor: Tensor) -> bool:
    return part == "weight" and tensor.dtype.itemsize > 1


def _read(form: Format, name: str, parts: Parts) -> Collected:
    try:
        return form.read(parts)
    except (RuntimeError, ValueError, IndexError, ZeroDivisionError) as error:
        shapes = ", ".join(f"{part} {list(tensor.shape)}" for part, tensor in parts.items())
        raise ModelError(f"The parts of {name} do not fit one another: {shapes}.") from error
