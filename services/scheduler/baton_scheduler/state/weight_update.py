"""An update of the weights of one model."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.protocol import AdminCommand, WeightSource, WeightVersion


@dataclass(slots=True)
class WeightUpdate:
    """An update, from its start to its end."""

    sources: list[WeightSource] = field(default_factory=list)
    """Sources that every worker has received, in order."""
    version: WeightVersion | None = None
    """Version that workers load; None while weights are received."""
    finishing: tuple[str, AdminCommand] | None = None
    """Gateway and command that are answered once all workers have switched."""

    def add(self, source: WeightSource) -> None:
        """Add received weights; a complete checkpoint replaces all earlier sources."""
        if source.whole:
            self.sources.clear()
        self.sources.append(source)
