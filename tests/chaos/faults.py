"""Faults to inject: targets, durations and times."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["kill", "kill_pair", "stop", "cut", "break", "slow", "hang"]
KINDS: dict[Kind, tuple[float, tuple[float, float]]] = {
    "kill": (0.35, (0.0, 0.0)),
    "kill_pair": (0.35, (0.0, 0.0)),
    "stop": (0.15, (0.2, 3.0)),
    "cut": (0.25, (0.5, 4.0)),
    "break": (0.1, (0.0, 0.0)),
    "slow": (0.15, (1.0, 4.0)),
    "hang": (0.15, (0.0, 0.0)),
}
"""Share of all faults, and the bounds of their length in seconds.

Processes are killed with SIGKILL, workers also two at once, or stopped and continued, or, but for
workers, hang until their supervisor kills them. Links are cut, so that nothing passes either way
and nobody is told; broken, so that what was on its way is gone; or slowed down.
"""
USUAL: tuple[Kind, ...] = ("kill", "stop", "cut", "break", "slow")
"""What breaks if nobody chooses. Whether something hangs takes long to tell, and two workers at
once are most of those that there are."""


@dataclass(frozen=True)
class Fault:
    """One fault at one process or link."""

    kind: Kind
    target: str
    """One name, or several with a `+` between."""
    started: float
    """By the monotonic clock."""
    seconds: float
    severed: bool = False
    """A cut link loses its connections when it heals, and what was on its way with them."""

    @property
    def ended(self) -> float:
        """When whatever was broken works again, if nobody has to start it."""
        return self.started + self.seconds

    @property
    def targets(self) -> list[str]:
        """Names of the processes or of the link that it hits."""
        return self.target.split("+")

    @property
    def name(self) -> str:
        """Its kind and that of its target: `kill worker`, for any worker."""
        return f"{self.kind} {re.sub('#.*|-[0-9]+$', '', self.target)}"

    def __str__(self) -> str:
        length = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.kind} {self.target}{length}{', then broken' * self.severed}"


def draw(
    chance: random.Random, kinds: Sequence[Kind], processes: list[str], links: list[str], now: float
) -> Fault:
    """Any fault of some kinds at any process or link."""
    kind = chance.choices(kinds, [KINDS[kind][0] for kind in kinds])[0]
    workers = [name for name in processes if name.startswith("worker#")]
    able = [name for name in processes if name not in workers]
    among = {"kill": processes, "kill_pair": workers, "stop": processes, "hang": able}
    target = "+".join(chance.sample(among.get(kind, links), 2 if kind == "kill_pair" else 1))
    seconds = chance.uniform(*KINDS[kind][1])
    return Fault(kind, target, now, seconds, kind == "cut" and chance.random() < 0.5)
