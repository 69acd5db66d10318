"""The tensors of a quantised weight, brought together in whatever order they are stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.kernels.linear import Stored

Parts: TypeAlias = Mapping[str, Tensor]
"""The tensors of a weight, by what follows the name of its module."""
_SPELLINGS = {"weight_scale_inv": "weight_scale", "activation_scale": "input_scale"}
_STACKED = "_scale_inv"
"""What is added to the name of a tensor that holds all experts, for their scales."""


@dataclass(frozen=True, slots=True)
class Format:
    """How a method stores a weight."""

    parts: frozenset[str]
    """What a weight is made of. One of them may be "weight": then tensors of that name whose
    numbers take more than a byte are weights that were not quantised."""
    read: Callable[[Parts], Stored]
    """What they mean. May raise a ModelError."""
    unread: frozenset[str] = frozenset()
    """What lies beside them and says nothing about the weight."""


Formats: TypeAlias = Callable[[str], Format | None]
"""The format of a module, by its name; None if it is not quantised."""


class CollectedWeights:
    """Tensors as they are stored to weights.

    Args:
        formats: those of the checkpoint.
    """

    def __init__(self, formats: Formats) -> None:
        self._formats = formats
        self._waiting = defaultdict[str, dict[str, Tensor]](dict)

    def __call__(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor | Stored]]:
        """One stored tensor to none, while others are awaited, or to one weight.

        Raises:
            ModelError: its parts do not fit one another, or mean what Baton cannot read.
        """
        weight, part = _place(name, tensor)
        form = self._formats(weight.removesuffix(".weight"))
        if form is None or part not in form.parts | form.unread or _is_plain(part, tensor):
            yield name, tensor
            return
        if part in form.unread:
            return
        parts = self._waiting[weight]
        parts[part] = tensor
        if parts.keys() == form.parts:
            yield weight, _read(form, weight, self._waiting.pop(weight))

    def end(self) -> None:
        """All tensors have come.

        Raises:
            ModelError: a weight lacks some.
        """
        for weight, parts in self._waiting.items():
            form = self._formats(weight.removesuffix(".weight"))
            lacking = ", ".join(sorted(form.parts - parts.keys())) if form else ""
            raise ModelError(
                f"{weight} is quantised, and the checkpoint lacks a part of it: {lacking}."
            )


def _place(name: str, tensor: Tensor) -> tuple[str, str]:
    """The weight that a tensor belongs to, as the layers call it, and which part it is."""
    module, _, part = name.rpartition(".")
    part = _SPELLINGS.get(part, part)
    if part.endswith(_STACKED):
        return name.removesuffix(_STACKED), "weight_scale"
    if tensor.dtype is torch.float8_e4m3fn and part not in ("weight", "weight_scale"):
        return name, "weight"
    return f"{module}.weight", part


def _is_plain(part: str, tensor: Tensor) -> bool:
    return part == "weight" and tensor.dtype.itemsize > 1


def _read(form: Format, name: str, parts: Parts) -> Stored:
    try:
        return form.read(parts)
    except (RuntimeError, ValueError, IndexError, ZeroDivisionError) as error:
        shapes = ", ".join(f"{part} {list(tensor.shape)}" for part, tensor in parts.items())
        raise ModelError(f"The parts of {name} do not fit one another: {shapes}.") from error
