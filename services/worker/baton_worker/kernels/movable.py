"""Kernels whose weights another process can use, in the layout that they have for one product."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, Self, TypeAlias, runtime_checkable

from torch import Tensor

Tensors: TypeAlias = Mapping[str, Tensor]
"""The tensors of a weight by name. Their sizes may depend on the weight."""


@runtime_checkable
class MovableKernel(Protocol):
    """A `LinearKernel` that can be had with another weight."""

    @property
    def layout(self) -> str:
        """Equal for kernels whose `tensors` are interchangeable."""
        ...

    def tensors(self) -> Tensors:
        """The weight and its bias as the kernel reads them."""
        ...

    def with_tensors(self, tensors: Tensors) -> Self:
        """The same kernel with the tensors of another one of the same layout, which it keeps."""
        ...


def prefixed(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    """With names that begin with `prefix` and a dot."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def without_prefix(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    """Those of a prefix, by the names that they had before `prefixed`."""
    first = f"{prefix}."
    return {
        name.removeprefix(first): tensor
        for name, tensor in tensors.items()
        if name.startswith(first)
    }
