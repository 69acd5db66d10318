"""Mixtures of experts: router, routed experts and shared experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.kernels.linear import has_kernel
from baton_worker.kernels.lora import LoraKernel
from baton_worker.kernels.moe import experts as kernels
from baton_worker.kernels.moe.dispatch import output_weights, weighted_sum
from baton_worker.kernels.moe.lora import ExpertLora
from baton_worker.kernels.moe.store import ExpertStore
from baton_worker.kernels.weight import QuantizedWeight
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.invariant import sigmoid
from baton_worker.layers.layer import Layer
from baton_worker.layers.linear import Linear, halves
from baton_worker.layers.mlp import Glu, Mlp, activation, fused_gate, gating
from baton_worker.layers.moe.expert_load import ExpertLoad
from baton_worker.layers.moe.router import Router
from baton_worker.layers.moe.routers.base import NO_EXPERT, Routing
from baton_worker.spec.expert_map import ExpertMap


class Experts(Layer):
    """Stacked weights of all experts or of this rank's experts. Each expert has tensors of its own:
    the loader unstacks a checkpoint's stacked tensors."""

    gate_up: nn.Parameter | None
    down: nn.Parameter | None
    begin: Callable[[Tensor, Routing], Callable[[], Tensor]] | None = None
    """With expert parallelism, starts `forward` and returns its second half; the token exchange
    runs in between."""
    quantised_as: str | None = None
    """The kind in `baton_worker.kernels.quantized_weights.KINDS` used to quantise weights at load;
    None keeps them unquantised."""
    processed = ("gate_up", "down", "_kernel")

    def __init__(self, settings: spec.Moe, hidden: int, context: BuildContext) -> None:
        super().__init__()
        self._settings = settings
        self._roles = {role: context.name(f"expert_{role}") for role in ("gate", "up", "down")}
        router, dealt = settings.router, settings.dealt
        self._numbers = range(router.num_experts) if dealt is None else dealt.here
        self._first_number = settings.first_number
        self._local = None if dealt is None else _local(dealt, router.zero_experts, context.device)
        num, size = len(self._numbers), settings.expert.intermediate
        self._first = ("gate", "up") if isinstance(settings.expert, spec.Glu) else ("up",)
        rows = len(self._first) * size
        self.gate_up = context.staged(num, rows, hidden)
        self.down = context.staged(num, hidden, size)
        shapes = dict.fromkeys(self._first, (size, hidden)) | {"down": (hidden, size)}
        self._shapes = {
            self._name(role, expert): shape
            for role, shape in shapes.items()
            for expert in self._numbers
        }
        self.gate_up_bias = context.empty(num, rows) if settings.expert.bias else None
        self.down_bias = context.empty(num, hidden) if settings.expert.bias else None
        self._selector, self._exact = context.experts, bool(context.row_block)
        self.like: Tensor = torch.empty(0, dtype=context.dtype, device=context.device)
        self.int8_inputs = context.int8_inputs
        self._gate = between(settings.expert)
        self._quantized = dict[str, QuantizedWeight]()
        self._kernel: kernels.ExpertKernel | None = None
        self.lora: ExpertLora | None = None
        """LoRA products, where adapters are served and the kernel applies them."""
        if context.adapters is not None and dealt is None:
            first = [size] * len(self._first)
            self.lora = ExpertLora(context.adapters, num, first, hidden, size, self.like)

    def lora_layers(self) -> Iterator[tuple[LoraKernel, dict[str, int], int]]:
        """For each product of each expert its kernel, its parts and their rows, and its columns."""
        if self.lora is None:
            return
        hidden, size = self._shapes[self._name("down", self._numbers[0])]
        for expert in self._numbers:
            parts = {self._roles[role].format(expert=expert): size for role in self._first}
            yield self.lora.first[expert], parts, hidden
            yield self.lora.down[expert], {self._roles["down"].format(expert=expert): hidden}, size

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """Three weights per expert, two if it is ungated, and as many biases, if any."""
        for suffix, gate_up, down in (
            ("weight", self.gate_up, self.down),
            ("bias", self.gate_up_bias, self.down_bias),
        ):
            if gate_up is not None and down is not None:
                first = gate_up.chunk(len(self._first), dim=1)
                for role, stacked in (*zip(self._first, first, strict=True), ("down", down)):
                    for expert, rows in zip(self._numbers, stacked, strict=True):
                        yield f"{self._module(role, expert)}.{suffix}", rows

    def load_quantized(self, name: str, weight: QuantizedWeight) -> bool:
        """Take an expert's weight if a kernel can run it as stored."""
        if self.gate_up is None or self.down is None or name not in self._shapes:
            return False
        if weight.shape != self._shapes[name] or not self._selector.takes(weight):
            return False
        if not has_kernel(weight, self.like):
            return False
        self._quantized[name] = weight
        return True

    def process_weights_after_loading(self) -> None:
        """Choose a kernel, which packs the weights in its preferred layout."""
        assert self.down is not None
        packed_gate_up, packed_down = self._packed(self._first), self._packed(("down",))
        self.single_use = (
            any(packed_gate_up)
            or any(packed_down)
            or self.quantised_as is not None
            or self.down.device != self.like.device
        )
        self._widen_rest()
        self._kernel = self._selector.select(self._weights(packed_gate_up, packed_down))
        self.gate_up = self.down = None
        self._drop_unused_adapters()

    def _weights(
        self,
        packed_gate_up: Sequence[kernels.PackedParts | None],
        packed_down: Sequence[kernels.PackedParts | None],
    ) -> kernels.Experts:
        """What a kernel is made from; it may dispose of the weights."""
        assert self.gate_up is not None and self.down is not None
        return kernels.Experts(
            self._floats(self.gate_up, packed_gate_up),
            self._floats(self.down, packed_down),
            self.gate_up_bias,
            self.down_bias,
            self._gate,
            self._settings.weigh_input,
            _fused(self._settings.expert),
            self._settings.expert,
            self.quantised_as,
            disposable=True,
            packed_gate_up=packed_gate_up,
            packed_down=packed_down,
            lora=self.lora,
            exact=self._exact,
        )

    def restore(self, made: Mapping[str, Any]) -> None:
        """See `Layer`."""
        super().restore(made)
        self._drop_unused_adapters()

    def _drop_unused_adapters(self) -> None:
        if self._kernel is not None and not self._kernel.takes_adapters:
            self.lora = None

    def _packed(self, roles: Sequence[str]) -> list[kernels.PackedParts | None]:
        """By local expert its quantised weights; None where it lacks one of them."""
        packed = list[kernels.PackedParts | None]()
        for expert in self._numbers:
            names = [self._name(role, expert) for role in roles]
            has_all = all(name in self._quantized for name in names)
            packed.append(tuple(self._quantized.pop(name) for name in names) if has_all else None)
        return packed

    def _floats(self, weights: Tensor, packed: Sequence[kernels.PackedParts | None]) -> Tensor:
        """The float weights of all experts where they run; without rows if all are packed."""
        if all(parts is not None for parts in packed):
            return self.like.new_empty(len(packed), 0, 0)
        return weights.to(self.like.device)

    def _widen_rest(self) -> None:
        """Dequantise gates without their up projections and the reverse: the rest are floats."""
        if self._quantized:
            for name, rows in self.weight_targets():
                if name in self._quantized:
                    rows.copy_(self._quantized.pop(name).dequantise())

    def _name(self, role: str, expert: int) -> str:
        return f"{self._module(role, expert)}.weight"

    def _module(self, role: str, expert: int) -> str:
        return self._roles[role].format(expert=self._first_number + expert)

    @property
    def capture_blocker(self) -> str | None:
        """The capture blocker of the kernel."""
        assert self._kernel is not None
        return self._kernel.capture_blocker

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights packed for a kernel."""
        return 0 if self._kernel is None else self._kernel.nbytes

    def forward(self, x: Tensor, routing: Routing) -> Tensor:
        """x [T, hidden] and its routing to [T, hidden]."""
        assert self._kernel is not None
        experts = routing.experts if self._local is None else self._local[routing.experts]
        out = self._kernel(x, experts, routing.weights)
        return self._with_zero_experts(out, x, routing) if self._settings.passes else out

    def visits(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """The results of single visits: x [V, hidden], local experts int64 [V] and the router's
        weights float32 [V] to [V, hidden], not weighted but for experts whose input is."""
        assert self._kernel is not None
        visit_weights = weights if self._settings.weigh_input else torch.ones_like(weights)
        return self._kernel(x, experts[:, None], visit_weights[:, None])

    def combined(self, results: Tensor, x: Tensor, routing: Routing) -> Tensor:
        """The results [T, slots, hidden] of all `visits` of tokens x [T, hidden] to [T, hidden],
        as `forward` of a process with all experts adds them up."""
        weights = output_weights(routing.weights, self._settings.weigh_input)
        return self._with_zero_experts(weighted_sum(results, weights), x, routing)

    def _with_zero_experts(self, out: Tensor, x: Tensor, routing: Routing) -> Tensor:
        if not self._settings.router.zero_experts:
            return out
        is_zero_expert = routing.experts >= self._settings.router.num_experts
        weight = torch.where(is_zero_expert, routing.weights, 0.0).sum(-1, keepdim=True)
        return (out + x * weight).to(x.dtype)

    @property
    def held(self) -> tuple[tuple[int, ...], ...]:
        """The experts of each rank, see `ExpertMap`."""
        assert self._settings.dealt is not None
        return self._settings.dealt.held

    @property
    def store(self) -> ExpertStore:
        """The weights of local experts in the layout of their kernel."""
        assert self._kernel is not None
        return self._kernel.store

    @property
    def expert_bytes(self) -> int:
        """Bytes of the weights of one expert as floats."""
        elements = sum(rows * columns for rows, columns in self._shapes.values())
        return elements * self.like.itemsize // len(self._numbers)


def _dense(settings: spec.Glu | spec.Mlp, hidden: int, context: BuildContext) -> Glu | Mlp:
    """The shared feed-forward that every token passes through."""
    if isinstance(settings, spec.Mlp):
        return Mlp(settings, hidden, context)
    return Glu(settings, hidden, context)


def between(expert: spec.Glu | spec.Mlp) -> kernels.Gate:
    """The function between an expert's two products."""
    if isinstance(expert, spec.Mlp):
        return activation(expert.activation)
    return partial(halves, gate=gating(expert), fused=fused_gate(expert))


def _fused(expert: spec.Glu | spec.Mlp) -> str | None:
    return fused_gate(expert) if isinstance(expert, spec.Glu) else None


def _local(dealt: ExpertMap, zero_experts: int, device: torch.device) -> Tensor:
    """int64: local index of every expert; the last row is that of `NO_EXPERT`."""
    return torch.tensor([*dealt.local, *[NO_EXPERT] * (zero_experts + 1)], device=device)


def watch(model: nn.Module, window: int) -> ExpertLoad | None:
    """Start counting expert load in all layers of a model; None if it has no experts."""
    routers = [module for module in model.modules() if isinstance(module, Router)]
    if not routers:
        return None
    load = ExpertLoad([router.settings.num_experts for router in routers], window)
    for layer, router in enumerate(routers):
        router.watch = partial(load.record, layer)
    return load


class Moe(nn.Module):
    """experts(x) + shared(x). The spec may gate the shared output, and may project the input and
    the output of the routed experts to fewer channels and back."""

    def __init__(self, settings: spec.Moe, hidden: int, context: BuildContext) -> None:
        super().__init__()
        self._scale = settings.scale
        self.router = Router(settings.router, hidden, context)
        self.narrow = self.wide = None
        if (width := settings.width) is not None:
            self.narrow = Linear(hidden, {"experts_in": width}, context)
            self.wide = Linear(width, {"experts_out": hidden}, context)
        self.experts = Experts(settings, settings.width or hidden, context)
        self.shared = self.shared_gate = None
        if settings.shared is not None:
            shared = replace(context, name=lambda role: context.name(f"shared_{role}"))
            self.shared = _dense(settings.shared, hidden, shared)
        if settings.shared_gate:
            self.shared_gate = Linear(hidden, {"shared_expert_gate": 1}, context)

    def forward(self, x: Tensor, residual: Tensor | None, mask: Tensor | None = None) -> Tensor:
        """[T, hidden] to [T, hidden], plus `residual`. With `mask`, bool [T], no expert takes the
        other tokens."""
        routing, narrowed = self.router(x, mask), x if self.narrow is None else self.narrow(x)
        if self.shared is None:
            out: Tensor = self._widened(self.experts(narrowed, routing))
        elif self.experts.begin is not None:
            coming = self.experts.begin(narrowed, routing)
            shared = self._shared(x)
            out = self._widened(coming()) + shared
        elif self.shared_gate is None:
            out = self.shared(x, self._widened(self.experts(narrowed, routing)))
        else:
            out = self._widened(self.experts(narrowed, routing)) + self._shared(x)
        if self._scale != 1.0:
            out = out * self._scale
        return out if residual is None else residual + out

    def _widened(self, returned: Tensor) -> Tensor:
        return returned if self.wide is None else self.wide(returned)

    def _shared(self, x: Tensor) -> Tensor:
        assert self.shared is not None
        out: Tensor = self.shared(x, None)
        return out if self.shared_gate is None else out * sigmoid(self.shared_gate(x))
