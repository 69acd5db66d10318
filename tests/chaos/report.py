"""What a chaos run has shown."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import quantiles

from rich.table import Table

from tests.chaos.streams import Outcome


@dataclass
class Report:
    """Counts of one run."""

    verdicts: Counter[str] = field(default_factory=Counter)
    stalls: list[float] = field(default_factory=list)
    """The longest pause of every stream, in seconds."""
    resumed: int = 0
    tokens: int = 0
    leaked: int = 0
    hurts: Counter[str] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)
    """Of what was not whole."""

    def add(self, outcome: Outcome) -> None:
        """Count a request."""
        self.verdicts[outcome.verdict] += 1
        self.resumed += outcome.resumed
        self.tokens += len(outcome.stalls)
        if outcome.stalls:
            self.stalls.append(outcome.stalls[0])
        if outcome.verdict != "whole" and len(self.details) < 20:
            self.details.append(f"{outcome.verdict}: {outcome.detail}")

    @property
    def broken(self) -> int:
        """Requests whose answer is not what it must be, said or unsaid, and leaked pages."""
        return (
            sum(self.verdicts[v] for v in ("lost", "wrong", "duplicated", "silent")) + self.leaked
        )

    def table(self) -> Table:
        """For people."""
        total = sum(self.verdicts.values())
        made = Table(title=f"{sum(self.hurts.values())} faults under load")
        made.add_column("what")
        made.add_column("count", justify="right")
        made.add_row("requests", str(total))
        for verdict in ("lost", "wrong", "duplicated", "silent"):
            made.add_row(verdict, str(self.verdicts[verdict]))
        clean = self.verdicts["error"]
        made.add_row("clean errors", f"{clean} ({clean / max(total, 1):.2%})")
        made.add_row("connections resumed", str(self.resumed))
        made.add_row("pages leaked", str(self.leaked))
        for name, share in (("p50", 50), ("p99", 99)):
            made.add_row(f"longest stall of a stream, {name}", f"{self._stall(share):.2f} s")
        for name, count in sorted(self.hurts.items()):
            made.add_row(f"  {name}", str(count))
        return made

    def _stall(self, share: int) -> float:
        if len(self.stalls) < 2:
            return max(self.stalls, default=0.0)
        return quantiles(self.stalls, n=100)[share - 1]
