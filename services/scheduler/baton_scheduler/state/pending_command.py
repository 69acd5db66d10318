"""An operator's command in progress."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.protocol import AdminCommand, WeightSource


@dataclass(slots=True)
class PendingCommand:
    """A command that some workers have not answered yet."""

    gateway: str
    """Peer that gets the reply; empty for the scheduler's own commands."""
    command: AdminCommand
    waiting: set[str]
    """Names of the workers that have not answered."""
    loaded: dict[str, bytes] = field(default_factory=dict)
    """Worker -> digest of what it has loaded."""
    sources: dict[str, WeightSource] = field(default_factory=dict)
    """Worker -> weights that it has received."""
    failed: dict[str, str] = field(default_factory=dict)
    """Worker -> reason for its refusal."""
