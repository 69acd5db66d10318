"""Counters of attention plans and of fallbacks to plain torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from baton_worker.attention.attention_batch import AttentionBatch
from baton_worker.attention.attention_spec import AttentionSpec
from baton_worker.attention.backend import Backend


@dataclass
class CallStats:
    """Counts since the last report."""

    plans: int = 0
    """Made: in a step one for each kind of layer, and group of pages that has such layers."""
    replans: int = 0
    """Of those, for a step whose rows have other numbers of new tokens than in the last step of
    that kind of layer: a stored plan would be invalid."""
    fallbacks: int = 0
    """Layers that plain torch has answered, since no kernel takes them."""
    _last: dict[AttentionSpec, tuple[int, ...]] = field(default_factory=dict)

    def planned(self, batch: AttentionBatch, call: AttentionSpec) -> None:
        """Count a plan."""
        self.plans += 1
        self.replans += self._last.get(call, batch.query_lens) != batch.query_lens
        self._last[call] = batch.query_lens

    def __str__(self) -> str:
        """One phrase for a log line."""
        return (
            f"attention: {self.plans} plans, {self.replans} of them replans, "
            f"{self.fallbacks} fallbacks to torch"
        )

    def clear(self) -> None:
        """Reset the counters."""
        self.plans = self.replans = self.fallbacks = 0


class CountedBackend:
    """Wraps a backend and counts its calls.

    Args:
        backend: the wrapped backend.
        plain: True if it is implemented in plain torch.
        counts: counters to increment.
    """

    def __init__(self, backend: Backend, plain: bool, counts: CallStats) -> None:
        self.backend, self._plain, self._counts = backend, plain, counts
        self.layouts, self.capture_blocker = backend.layouts, backend.capture_blocker
        self.launch_blocker = backend.launch_blocker

    def refuses(self, call: AttentionSpec) -> str | None:
        """See `Backend.refuses`."""
        return self.backend.refuses(call)

    def plan(self, batch: AttentionBatch, call: AttentionSpec) -> Any:
        """See `Backend.plan`."""
        self._counts.planned(batch, call)
        return self.backend.plan(batch, call)

    def forward(
        self,
        plan: Any,
        query: Tensor,
        pages: Tensor,
        sinks: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> Tensor:
        """See `Backend.forward`."""
        self._counts.fallbacks += self._plain
        return self.backend.forward(plan, query, pages, sinks, lse)
