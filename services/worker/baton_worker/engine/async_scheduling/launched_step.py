"""A step whose tokens have not been read."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from baton_worker.engine.async_scheduling.prepared_step import PreparedStep
from baton_worker.engine.batch.plan_columns import Column
from baton_worker.platform.device_link import Download


@dataclass(slots=True)
class LaunchedStep:
    """A step on the device."""

    prepared: PreparedStep
    positions: Column
    """int64 [R]: position in its sequence of the token of each row of logits."""
    read: Download | None
    """Its copy to the host; None if no row runs."""
    over: dict[int, list[int]] = field(default_factory=dict)
    """Slots whose sequences have ended by an earlier step, and their pages then: their rows give
    nothing."""

    @property
    def ready(self) -> bool:
        """True if reading it takes no time."""
        return self.read is None or self.read.ready

    def live(self, slots: Column) -> npt.NDArray[np.bool_]:
        """The tokens of some slots whose sequences had not ended before."""
        return ~np.isin(slots, [*self.over])
