"""A learned vector that stands where a token or a query does."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from baton_worker.layers.layer import Layer, Site


class Learned(Layer):
    """One parameter of any shape, under its role's own name: no ".weight" follows it."""

    def __init__(self, shape: tuple[int, ...], role: str, site: Site) -> None:
        super().__init__()
        self._name = site.name(role)
        self.value = site.empty(*shape)

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        """The parameter."""
        yield self._name, self.value

    def forward(self) -> Tensor:
        """The parameter as it is."""
        return self.value
