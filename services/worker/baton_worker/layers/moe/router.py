"""The router of a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from baton.errors import ModelError
from baton_worker import spec
from baton_worker.kernels.linear import LinearKernel, PlainLinear, fastest
from baton_worker.layers.layer import BuildContext, Layer
from baton_worker.layers.moe.routers import ROUTERS
from baton_worker.layers.moe.routers.base import SCORES, Choose, Routing

_EACH_BY_ITSELF = ("top_k", "each_group")
"""Routers in which a token's experts depend on that token alone, chosen on its device."""


class Router(Layer):
    """The router of a layer: one projection in float32, then a row of `ROUTERS`."""

    watch: Callable[[Tensor], None] | None = None
    """Is shown where the tokens of each step go."""

    def __init__(self, settings: spec.Router, hidden: int, site: BuildContext) -> None:
        super().__init__()
        if settings.score not in SCORES:
            known = ", ".join(SCORES)
            raise ModelError(f"Router score '{settings.score}' is unknown. Known: {known}.")
        self.settings = settings
        self._choose: Choose = ROUTERS.load(settings.kind)
        self._weight_bytes = 0
        self._name, self._correction_name = site.name("router"), site.name("router_correction")
        # In float32 whatever the model computes in: a rounded logit chooses another expert.
        site = replace(site, dtype=torch.float32)
        size = settings.num_experts + settings.zero_experts
        self.weight: nn.Parameter | None = site.empty(size, hidden)
        self.bias = site.empty(size) if settings.bias else None
        self._logits: LinearKernel = PlainLinear(self.weight, self.bias)
        self.correction = site.empty(size) if settings.correction else None

    @property
    def together(self) -> bool:
        """Whether where a token goes depends on the other tokens of its step."""
        return self.settings.kind == "expert_choice"

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The projection, and the vector that corrects the choice."""
        if self.weight is not None:
            yield f"{self._name}.weight", self.weight
        if self.bias is not None:
            yield f"{self._name}.bias", self.bias
        if self.correction is not None:
            yield self._correction_name, self.correction

    @property
    def capture_blocker(self) -> str | None:
        """See `Layer`. Padding must not take an expert from a token, either."""
        kind = self.settings.kind
        return None if kind in _EACH_BY_ITSELF else f"the router {kind} may look at all tokens"

    def process_weights_after_loading(self) -> None:
        """Where the CPU has a product whose rows do not depend on each other, use it: a token
        must not change its experts with the batch that it is in."""
        assert self.weight is not None
        self._weight_bytes = self.weight.nbytes
        self._logits = fastest(self.weight, self.bias)
        self.weight = None

    @property
    def weight_bytes(self) -> int:
        """Bytes of the projection, once a kernel holds it."""
        return self._weight_bytes

    def forward(self, x: Tensor) -> Routing:
        """[T, hidden] to the routing of each token."""
        routing = self._choose(self._logits(x.float()), self.settings, self.correction)
        if self.watch is not None:
            self.watch(routing.experts)
        return routing
