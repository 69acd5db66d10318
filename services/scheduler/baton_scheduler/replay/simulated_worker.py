"""A worker that tracks its plans and computes nothing: it answers with the recorded tokens."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from baton.protocol import Plan, Result
from baton.protocol.token_columns import pack, unpack
from baton_scheduler.replay.script import Script

_FILLER = 0
"""Token id beyond the recorded tokens of a sequence."""


@dataclass
class _Slot:
    number: int
    num_prompt: int
    done: bool = False


@dataclass
class SimulatedWorker:
    """Plans and slots of one worker."""

    epoch: int
    token_bytes: float
    plans: deque[Plan] = field(default_factory=deque)
    slots: dict[int, _Slot] = field(default_factory=dict)
    busy: bool = False

    def step(self, script: Script, duration_us: int) -> Result:
        """Run the next plan with the recorded tokens."""
        plan = self.plans.popleft()
        for slot in unpack(plan.release, "I"):
            del self.slots[slot]
        for new in plan.new_sequences:
            self.slots[new.slot] = _Slot(int(new.request), new.num_prompt)
        rows, first, tokens, finished = self._run(plan, script)
        return Result(
            epoch=plan.epoch,
            step=plan.step,
            rows=pack(rows, "I"),
            first=pack(first, "I"),
            counts=b"\x01" * len(rows),
            tokens=pack(tokens),
            finished=finished,
            duration_us=duration_us,
        )

    def _run(
        self, plan: Plan, script: Script
    ) -> tuple[list[int], list[int], list[int], dict[int, str]]:
        """Slots that sample, the index and token of each, and the slots that finish."""
        rows, first, tokens, finished = list[int](), list[int](), list[int](), dict[int, str]()
        ends = np.frombuffer(plan.num_computed, "<u4") + np.frombuffer(plan.num_scheduled, "<u4")
        columns = (unpack(plan.rows, "I"), ends.tolist(), plan.samples)
        for row, end, samples in zip(*columns, strict=True):
            slot = self.slots[row]
            if slot.done or not samples:
                continue
            log, index = script.logs[slot.number], end - slot.num_prompt
            rows.append(row)
            first.append(index)
            tokens.append(log[index] if index < len(log) else _FILLER)
            if slot.number in script.ended and index >= len(log) - 1:
                slot.done, finished[row] = True, "stop"
        return rows, first, tokens, finished
