"""The router of a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from baton.errors import ModelError
from baton_worker import spec
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kernels.linear import (
    LinearKernel,
    LinearSpec,
    PlainLinear,
    choose,
    has_wide_sums,
)
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.invariant import tanh
from baton_worker.layers.layer import Layer
from baton_worker.layers.moe.routers import ROUTERS
from baton_worker.layers.moe.routers.base import NO_EXPERT, SCORES, Choose, Routing

_EACH_BY_ITSELF = ("top_k", "each_group", "sparse_mixer")
"""Routers that choose a token's experts from that token alone, on its device."""


class Router(Layer):
    """The router of a layer: a projection to float32, then a function of `ROUTERS`."""

    watch: Callable[[Tensor], None] | None = None
    """Called with the expert ids of each step."""

    def __init__(self, settings: spec.Router, hidden: int, context: BuildContext) -> None:
        super().__init__()
        if settings.score not in SCORES:
            known = ", ".join(SCORES)
            raise ModelError(f"Router score '{settings.score}' is unknown. Known: {known}.")
        self.settings = settings
        self._choose: Choose = ROUTERS.load(settings.kind)
        self._weight_bytes, self._row_block = 0, context.row_block
        self._dtype, self._input_dtype = context.dtype, torch.float32
        self._name, self._correction_name = (
            context.name("router"),
            context.name("router_correction"),
        )
        # Always float32: a rounded logit could select another expert.
        context = replace(context, dtype=torch.float32)
        size = settings.num_experts + settings.zero_experts
        self.weight: nn.Parameter | None = context.empty(size, hidden)
        self.bias = context.empty(size) if settings.bias else None
        self._logits: LinearKernel = PlainLinear(self.weight, self.bias, context.row_block)
        self.correction = context.empty(size) if settings.correction else None
        self._factors_name = context.name("router_factors") if settings.factors else ""
        self.factors = context.empty(size) if settings.factors else None

    @property
    def together(self) -> bool:
        """Whether a token's routing depends on the other tokens of its step."""
        return self.settings.kind == "expert_choice"

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The projection, the correction bias, and factors of experts."""
        if self.weight is not None:
            yield f"{self._name}.weight", self.weight
        if self.bias is not None:
            yield f"{self._name}.bias", self.bias
        if self.correction is not None:
            yield self._correction_name, self.correction
        if self.factors is not None:
            yield self._factors_name, self.factors

    @property
    def capture_blocker(self) -> str | None:
        """See `Layer`. Padding tokens must not take capacity from real ones, either."""
        kind = self.settings.kind
        return None if kind in _EACH_BY_ITSELF else f"the router {kind} may look at all tokens"

    def process_weights_after_loading(self) -> None:
        """Use the CPU's batch-invariant product where there is one: a token's experts must not
        depend on its batch."""
        assert self.weight is not None
        weight = self._multiplied(self.weight)
        self._weight_bytes = weight.nbytes
        # The CPU's product widens inputs on the way.
        like = torch.empty(0, dtype=self._dtype, device=weight.device)
        like = like if CpuLinear.refuses(weight, like) is None else weight
        self._input_dtype = like.dtype
        self._logits = choose(
            LinearSpec((weight,), self.bias, like, torch.float32, row_block=self._row_block)
        )
        self.weight = None

    def _multiplied(self, weight: Tensor) -> Tensor:
        """The weight in the model's dtype where that holds it without rounding, and products of
        that dtype have float32 sums: they are those of float32."""
        if not has_wide_sums(weight.device, self._dtype):
            return weight
        narrow = weight.to(self._dtype)
        return narrow if torch.equal(narrow.float(), weight) else weight

    @property
    def weight_bytes(self) -> int:
        """Bytes of the projection once it is packed for a kernel."""
        return self._weight_bytes

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Routing:
        """[T, hidden] to the routing of each token; to `NO_EXPERT` where `mask`, bool [T], is
        false."""
        logits = self._logits(x.to(self._input_dtype))
        if (cap := self.settings.softcap) is not None:
            logits = tanh(logits / cap) * cap
        routing = self._choose(logits, self.settings, self.correction)
        if self.factors is not None:
            weights = routing.weights * self.factors[routing.experts]
            routing = routing._replace(weights=weights)
        if mask is not None:
            routing = Routing(
                torch.where(mask[:, None], routing.experts, NO_EXPERT),
                torch.where(mask[:, None], routing.weights, 0.0),
            )
        if self.watch is not None:
            self.watch(routing.experts)
        return routing
