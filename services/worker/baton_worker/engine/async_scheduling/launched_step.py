"""A step whose tokens have not been read."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from baton.protocol import Plan
from baton_worker.engine.batch.plan_columns import Column
from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.engine.batch.step_outputs import StepOutputs
from baton_worker.platform.device_link import Download


@dataclass(slots=True)
class LaunchedStep:
    """Step `turn` of a plan, on the device."""

    plan: Plan
    turn: int
    inputs: StepInputs
    outputs: StepOutputs
    positions: Column
    """int64 [R]: position in its sequence of the token of each row of logits."""
    read: Download | None
    """Its copy to the host; None if no row runs."""
    begin: float
    gap: float
    """Seconds that the device was idle before it."""
    over: dict[int, list[int]] = field(default_factory=dict)
    """Slots whose sequences have ended by an earlier step, and their pages then: their rows give
    nothing."""

    @property
    def ready(self) -> bool:
        """True if reading it takes no time."""
        return self.read is None or self.read.ready

    def live(self, slots: Column) -> npt.NDArray[np.bool_]:
        """Those of some slots whose sequences had not ended before."""
        return ~np.isin(slots, [*self.over])
