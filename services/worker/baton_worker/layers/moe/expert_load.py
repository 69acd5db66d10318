"""Expert load statistics."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

_UNEVEN = 0.5
"""Below this balancedness a layer waits for its busiest expert half of the time."""


class ExpertLoad:
    """Tokens routed to every expert of every layer over the last `window` steps.

    Balancedness is a layer's mean load over its maximum (as in vLLM and DeepSeek's EPLB): 1 for
    uniform load, 1 / num_experts if one expert gets every token. Counts stay on the device; only a
    report synchronises.
    """

    def __init__(self, num_experts: Sequence[int], window: int) -> None:
        assert window > 0
        self._window = window
        self._steps: deque[list[Tensor | None]] = deque()
        self._open: list[Tensor | None] = [None] * len(num_experts)
        self._totals: list[Tensor | None] = [None] * len(num_experts)
        self._sizes = list(num_experts)
        self._closed = 0

    def record(self, layer: int, experts: Tensor) -> None:
        """Count the tokens of a layer, int64 [T, slots]; empty slots do not count."""
        size, flat = self._sizes[layer], experts.flatten()
        flat = torch.where((flat >= 0) & (flat < size), flat, size)
        # A window may have thousands of steps: 32 bits are half of its memory.
        counts = torch.zeros(size + 1, dtype=torch.int32, device=flat.device)
        counts = counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))[:size]
        before = self._open[layer]
        self._open[layer] = counts if before is None else before + counts

    def close_step(self) -> None:
        """End a step: add it to the window and drop the oldest if the window is full."""
        leaving = self._steps.popleft() if len(self._steps) == self._window else None
        for layer, new in enumerate(self._open):
            if new is not None:
                total = self._totals[layer]
                self._totals[layer] = new.long() if total is None else total + new
            if leaving is not None and (old := leaving[layer]) is not None:
                total = self._totals[layer]
                assert total is not None
                self._totals[layer] = total - old
        self._steps.append(self._open)
        self._open = [None] * len(self._sizes)
        self._closed += 1

    def counts(self, layer: int) -> Tensor:
        """int64 [num_experts]: tokens per expert of a layer within the window."""
        total = self._totals[layer]
        return torch.zeros(self._sizes[layer], dtype=torch.int64) if total is None else total

    def balancedness(self) -> list[float]:
        """Balancedness per layer; 1 for a layer without tokens."""
        loads = [self.counts(layer).float() for layer in range(len(self._sizes))]
        return [(x.mean() / x.max()).item() if x.max() > 0 else 1.0 for x in loads]

    def uneven(self, below: float = _UNEVEN) -> list[int]:
        """Layers below this balancedness."""
        return [layer for layer, value in enumerate(self.balancedness()) if value < below]

    def report(self) -> str:
        """One line at the end of each window; empty otherwise."""
        if self._closed % self._window:
            return ""
        values, uneven = self.balancedness(), self.uneven()
        line = f"experts: balancedness {sum(values) / len(values):.2f} over {self._window} steps"
        if uneven:
            numbers = ", ".join(str(layer) for layer in uneven[:8])
            line += f"; below {_UNEVEN} in {len(uneven)} layers with experts ({numbers}...)"
        return line
