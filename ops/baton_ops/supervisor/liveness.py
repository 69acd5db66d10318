"""A process whose main loop stands still although nobody has stopped it: as good as dead, too.

The loop says four times a second that it turns (`baton.process.watchdog`). Silence alone proves
nothing: on a machine with too much to do, or too little memory, a healthy process may have no turn
for seconds. So only that time counts in which its main thread could have said it. The system knows;
see proc(5):

    main thread               what counts                  because
    S     asleep              the time                     a loop that turns wakes every 0.1 s
    R     runs, or wants to   the processor time it got    who waits for a core is not to blame
    D     at the disk         nothing                      it is swapped in, and no kill helps
    T, t  stopped, traced     nothing                      see `baton_ops.supervisor.process_state`;
    a debugger
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from baton.net.handshake import LOOK_SECONDS

HUNG_SECONDS = 10.0
"""How long a loop may stand still before its process is given up, by default: many times what the
longest turn of a healthy one takes, and a third of what requests wait for the next scheduler."""


class LivenessProbe(NamedTuple):
    """What the main thread of a process does at a moment."""

    state: str
    """As in the table above."""
    seconds: float
    """Processor time that it has had so far."""


def probe(pid: int) -> LivenessProbe | None:
    """None when the process is gone, or the system does not tell."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/stat").read_text()
    except OSError:
        return None
    fields = found.rpartition(") ")[2].split()
    return LivenessProbe(fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


class HangDetector:
    """For how long the loop of a process could have turned and has not.

    Judges only who has turned before: whoever starts may take as long as it takes.
    """

    def __init__(self, patience: float) -> None:
        """`patience`: seconds; infinite for one that is never given up."""
        self._patience = patience
        self._seen: LivenessProbe | None = None
        self._looked = self._lost = 0.0
        self._begun = False

    def over(self, told: bool, seen: LivenessProbe | None, now: float) -> bool:
        """Whether it stands still for so long that nobody should wait for it. `told`: it has given
        a sign since the last call."""
        missed = 0.0 if seen is None or self._seen is None else self._missed(seen, now)
        self._seen, self._looked = seen, now
        self._begun = self._begun or told
        self._lost = 0.0 if told else self._lost + missed
        return self._begun and self._lost >= self._patience

    def _missed(self, seen: LivenessProbe, now: float) -> float:
        """What counts of the time since the last look: only while somebody looks."""
        assert self._seen is not None
        if seen.state == "R":
            return seen.seconds - self._seen.seconds
        return min(now - self._looked, LOOK_SECONDS) if seen.state == "S" else 0.0

    def forget(self) -> None:
        """The next one that is looked at is another process."""
        self._seen, self._lost, self._begun = None, 0.0, False
