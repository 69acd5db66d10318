"""The weights of a layer's experts one by one, in the layout of their kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from baton_worker.kernels.linear import LinearKernel
from baton_worker.kernels.moe.experts import Experts
from baton_worker.kernels.movable import MovableKernel, Tensors, prefixed, without_prefix
from baton_worker.platform.malloc import release_pages


class ExpertStore(Protocol):
    """Experts of a layer that can be read and replaced one by one."""

    def refuses(self) -> str | None:
        """Why experts cannot be exchanged, as half a sentence; None if they can."""
        ...

    @property
    def layout(self) -> str:
        """Equal for stores whose experts are interchangeable."""
        ...

    def expert(self, number: int) -> Tensors:
        """The weights of a local expert. They do not change until `put` replaces them."""
        ...

    def put(self, number: int, tensors: Tensors) -> None:
        """Let a local expert have the weights of another one, which are the store's from now on."""
        ...


class StackedStore:
    """Experts whose weights are rows of common tensors.

    Args:
        stacks: by name [E, ...].
        format: what the numbers mean that are in them.
        refusal: why experts cannot be exchanged.
    """

    def __init__(
        self,
        stacks: Mapping[str, Tensor | None],
        format: object = "floats",
        refusal: str | None = None,
    ) -> None:
        self._stacks = {name: stack for name, stack in stacks.items() if stack is not None}
        self._format, self._refusal = format, refusal

    @classmethod
    def of(cls, experts: Experts) -> StackedStore:
        """The store of weights in floats."""
        names = ("gate_up", "down", "gate_up_bias", "down_bias")
        return cls({name: getattr(experts, name) for name in names})

    def refuses(self) -> str | None:
        """See `ExpertStore`."""
        return self._refusal

    @property
    def layout(self) -> str:
        """See `ExpertStore`."""
        each = self._stacks.items()
        parts = (f"{name} {[*stack.shape[1:]]} {stack.dtype}" for name, stack in each)
        return f"{self._format} {' '.join(parts)}"

    def expert(self, number: int) -> Tensors:
        """See `ExpertStore`."""
        return {name: stack[number] for name, stack in self._stacks.items()}

    def put(self, number: int, tensors: Tensors) -> None:
        """See `ExpertStore`."""
        for name, stack in self._stacks.items():
            stack[number].copy_(tensors[name])


class KernelStore:
    """Experts with a kernel for each of their products.

    Args:
        products: by name the kernels of all experts, replaced in place.
        replaced: called after some were.
    """

    def __init__(
        self,
        products: Mapping[str, list[LinearKernel]],
        replaced: Callable[[], None] = lambda: None,
    ) -> None:
        self._products, self._replaced = products, replaced

    def refuses(self) -> str | None:
        """See `ExpertStore`."""
        for kernels in self._products.values():
            for kernel in kernels:
                if not isinstance(kernel, MovableKernel):
                    return f"{type(kernel).__name__} multiplies them, and keeps its weights"
            if len({_movable(kernel).layout for kernel in kernels}) > 1:
                return "they are stored in several ways in one layer"
        return None

    @property
    def layout(self) -> str:
        """See `ExpertStore`."""
        each = self._products.items()
        return " ".join(f"{name} {_movable(kernels[0]).layout}" for name, kernels in each)

    def expert(self, number: int) -> Tensors:
        """See `ExpertStore`."""
        tensors = dict[str, Tensor]()
        for name, kernels in self._products.items():
            tensors |= prefixed(name, _movable(kernels[number]).tensors())
        return tensors

    def put(self, number: int, tensors: Tensors) -> None:
        """See `ExpertStore`."""
        for name, kernels in self._products.items():
            before = _movable(kernels[number])
            after = before.with_tensors(without_prefix(name, tensors))
            kernels[number] = after  # type: ignore[call-overload]
            # Neighbours in one block of memory would keep all of it.
            for old in before.tensors().values():
                if old.device.type == "cpu" and old.is_contiguous():
                    release_pages(old.data_ptr(), old.nbytes)
        self._replaced()


def _movable(kernel: LinearKernel) -> MovableKernel:
    assert isinstance(kernel, MovableKernel), "refuses() was not asked"
    return kernel
