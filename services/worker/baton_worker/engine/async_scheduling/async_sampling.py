"""Sampling of a launched step: its tokens stay on the device, and a copy to the host is queued."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_worker.engine.async_scheduling.async_forward import AsyncForward
from baton_worker.engine.batch.plan_columns import Column
from baton_worker.engine.batch.sampling_state import SamplingState
from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.platform.device_link import Download
from baton_worker.sampling import Sampler, device_columns, truncations

BROKEN = -1
"""Placeholder of a token whose logits are not finite."""


@dataclass(frozen=True, slots=True)
class _Staged:
    """Columns of a step on the device, with the step's contents once they are copied."""

    indices: Tensor
    """int64 [R]: where on the flat token axis the hidden state of each row is."""
    slots: Tensor
    index: Tensor
    columns: dict[str, Tensor]
    greedy: bool
    truncations: dict[str, bool]
    quiet: Tensor
    """int64 [Q]: last token of each row that does not sample."""


class AsyncSampling:
    """Samples every row that the plan marks; nothing waits for the device."""

    def __init__(self, forward: AsyncForward, sampling: SamplingState, sampler: Sampler) -> None:
        self._forward, self._sampling, self._sampler = forward, sampling, sampler
        self._cached: tuple[bytes, int] | None = None
        self._columns: dict[str, npt.NDArray[Any]] = {}
        self._greedy, self._truncations = False, dict[str, bool]()

    def launch(self, inputs: StepInputs) -> Download:
        """Queue a step: model, sampling, and the copy of [tokens [R], finite [Q]] int32 of R rows
        that sample and Q rows that do not. A token is `BROKEN` where the logits are not finite."""
        staged = self._stage(inputs)
        hidden = self._forward(inputs)
        parts = []
        if len(staged.slots):
            parts.append(self._sample(hidden, staged))
        if len(staged.quiet):
            states = hidden.index_select(0, staged.quiet)
            parts.append(states.abs().amax(1).isfinite().int())
        return self._forward.link.download(parts[0] if len(parts) == 1 else torch.cat(parts))

    def _sample(self, hidden: Tensor, staged: _Staged) -> Tensor:
        # All rows: a replayed step has logits for these very states, not for a copy.
        if len(staged.indices) != len(hidden):
            hidden = hidden.index_select(0, staged.indices)
        logits = self._forward.model.logits(hidden)
        tokens, finite = self._sampler.launch(
            logits,
            staged.columns,
            staged.index,
            greedy=staged.greedy,
            truncations=staged.truncations,
        )
        # The embedding needs a valid id in place of a token that does not exist.
        tokens = torch.where(finite, tokens, 0)
        self._forward.keep(staged.slots, tokens.long())
        return torch.where(finite, tokens, BROKEN).int()

    def _stage(self, inputs: StepInputs) -> _Staged:
        put, rows = self._forward.staged.put, inputs.logits
        self._gather(rows.slots)
        quiet = inputs.rows.last[~inputs.rows.samples]
        return _Staged(
            put("logits_indices", rows.indices),
            put("sampling_slots", rows.slots),
            put("sampling_index", rows.index),
            {name: put(name, values) for name, values in self._columns.items()},
            self._greedy,
            self._truncations,
            put("quiet", quiet),
        )

    def _gather(self, slots: Column) -> None:
        """The sampling columns of these slots: those of the last step while the batch is the
        same."""
        key = slots.tobytes(), self._sampling.version
        if key == self._cached:
            return
        parameters = self._sampling.parameters[slots]
        self._cached, self._greedy = key, bool(np.all(parameters["greedy"]))
        self._columns, self._truncations = device_columns(parameters), truncations(parameters)
