"""New weights of one model, on their way to its workers."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.protocol import AdminCommand, WeightSource, WeightVersion


@dataclass(slots=True)
class WeightUpdate:
    """New weights, from the start of an update to its end."""

    sources: list[WeightSource] = field(default_factory=list)
    """What every worker has received, in this order."""
    version: WeightVersion | None = None
    """What they load; None while weights are received."""
    finishing: tuple[str, AdminCommand] | None = None
    """Gateway and command that wait until all workers have switched."""

    def add(self, source: WeightSource) -> None:
        """Weights have been received; a whole checkpoint replaces all that came before it."""
        if source.whole:
            self.sources.clear()
        self.sources.append(source)
