"""A stack of blocks over layers of the paged cache: attention plans and rotations of a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeAlias

from torch import Tensor, nn

from baton_worker import spec
from baton_worker.attention import AttentionBatch
from baton_worker.attention.backend import DevicePlan
from baton_worker.kv_cache.layer_groups import LayerGroups
from baton_worker.layers.attention.whole_texts import Texts
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.mixer import Mixer
from baton_worker.layers.rope.fope import Fourier
from baton_worker.layers.rope.rope import Rotary

Plans: TypeAlias = list[dict[Any, Any]]
"""Plans of a step per layer group, keyed by each mixer's `call`."""


class BlockStack(nn.Module):
    """Blocks that own consecutive layers of a `KVCache`."""

    def _set_blocks(
        self, blocks: Iterable[nn.Module], context: BuildContext, first_layer: int = 0
    ) -> None:
        """Take the blocks; `first_layer` is the layer of the cache that belongs to the first. What
        runs before them is to be there already: modules are listed in execution order."""
        self.blocks = nn.ModuleList(blocks)
        self.dtype = context.dtype
        self.cached = slice(first_layer, first_layer + len(self.blocks))
        """The layers of the cache that belong to these blocks."""
        mixers = [module for module in self.blocks.modules() if isinstance(module, Mixer)]
        ropes = [mixer.rope for mixer in mixers if mixer.rope is not None]
        self._rotaries = {rope: _rotary(rope, context) for rope in ropes}
        self.fouriers = nn.ModuleList(r for r in self._rotaries.values() if isinstance(r, Fourier))
        self._backends: dict[Any, Any] = {mixer.call: mixer.backend for mixer in mixers}
        self._calls = [
            {module.call for module in block.modules() if isinstance(module, Mixer)}
            for block in self.blocks
        ]
        """By layer."""

    def layers(self) -> list[Layer]:
        """Every layer that holds weights, in execution order."""
        return [module for module in self.modules() if isinstance(module, Layer)]

    @property
    def capture_blocker(self) -> str | None:
        """Why decode steps cannot be captured (see `graphs`), as half a sentence; None if
        they can."""
        parts = [*self._backends.values(), *self.layers()]
        return next((part.capture_blocker for part in parts if part.capture_blocker), None)

    @property
    def launch_blocker(self) -> str | None:
        """Why steps cannot be launched ahead, as half a sentence; None if they can."""
        return next((b.launch_blocker for b in self._backends.values() if b.launch_blocker), None)

    def plan(self, batch: AttentionBatch, groups: LayerGroups) -> Plans:
        """Plan a step of these rows on the host; `groups` are those of the cache."""
        plans, of = Plans(), groups.of[self.cached]
        for group in range(len(groups.windows)):
            members = zip(of, self._calls, strict=True)
            kinds = set().union(*(calls for at, calls in members if at == group))
            plans.append(self._planned(batch.of(group), kinds))
        return plans

    def _planned(self, batch: AttentionBatch, calls: Iterable[Any]) -> dict[Any, Any]:
        """Plans by call. Where only some layers have `spans`, as Gemma 4's with a window, the
        tokens of an image are as any tokens in the others."""
        causal = batch
        if batch.last_keys is not None and any(map(_has_spans, self._backends)):
            causal = replace(batch, last_keys=None)
        parts = {call: batch if _has_spans(call) else causal for call in calls}
        return {call: self._backends[call].plan(part, call) for call, part in parts.items()}

    def contexts(
        self,
        positions: Tensor,
        batch: AttentionBatch,
        plans: Plans,
        texts: tuple[Texts, ...] = (),
    ) -> list[ForwardContext]:
        """Forward contexts by layer group; they differ in slot mapping. Plans of the device are
        made here."""
        step = ForwardContext(
            slots=batch.slot_mapping,
            angles={rope: r.angles(positions, self.dtype) for rope, r in self._rotaries.items()},
            plans={},
            positions=positions,
            texts=texts,
        )
        return [
            replace(step, slots=batch.of(group).slot_mapping, plans=_made(plan))
            for group, plan in enumerate(plans)
        ]


def _made(plans: dict[Any, Any]) -> dict[Any, Any]:
    """The plans of a step, by kind of layer."""
    return {
        call: plan.compute() if isinstance(plan, DevicePlan) else plan
        for call, plan in plans.items()
    }


def _has_spans(call: Any) -> bool:
    return getattr(call, "spans", False)


def _rotary(rope: spec.Rope, context: BuildContext) -> Rotary | Fourier:
    if isinstance(rope, spec.FourierRope):
        return Fourier(rope, context)
    return Rotary(rope, context.device)
