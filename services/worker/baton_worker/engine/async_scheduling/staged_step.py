"""A step in a stage of a pipeline before the last one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from baton_worker.engine.async_scheduling.prepared_step import PreparedStep


@dataclass(frozen=True, slots=True)
class StagedStep:
    """A step whose hidden states another stage computes."""

    prepared: PreparedStep
    run: Callable[[], Tensor] | None
    """Gives its hidden states; None if no row runs."""

    @property
    def has_rows(self) -> bool:
        """False if it waits for no hidden states."""
        return self.run is not None

    def discard(self) -> None:
        """Receive its hidden states and drop them: otherwise they would be received as those of the
        next step."""
        if self.run is not None:
            self.run()
