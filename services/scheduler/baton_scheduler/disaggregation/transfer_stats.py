"""Totals of KV transfers per transport, as reported by workers."""

from __future__ import annotations

from dataclasses import dataclass

from baton.protocol import Pulled, TransferStats

_NONE = "none"
"""For pulls whose workers did not agree on a transport."""
_MOST = 16
"""Maximum number of distinct transports, since the names come from workers."""


@dataclass(slots=True)
class _Row:
    done: int = 0
    failed: int = 0
    num_bytes: int = 0
    seconds: float = 0.0


class TransferTotals:
    """Totals since the start, by transport."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}

    def add(self, pulled: Pulled) -> None:
        """Count a transfer that has ended, successfully or not."""
        name = pulled.transport or _NONE
        if name not in self._rows and len(self._rows) >= _MOST:
            name = _NONE
        row = self._rows.setdefault(name, _Row())
        if pulled.reason:
            row.failed += 1
            return
        row.done += 1
        row.num_bytes += pulled.num_bytes
        row.seconds += pulled.duration_us / 1e6

    def stats(self) -> tuple[TransferStats, ...]:
        """A snapshot, by name."""
        return tuple(
            TransferStats(name, row.done, row.failed, row.num_bytes, row.seconds)
            for name, row in sorted(self._rows.items())
        )
