"""The delays of restarts, and exit codes in words; `test_supervisor.py` restarts processes."""

from __future__ import annotations

import signal

from baton_ops.supervisor.child import (
    FIRST_DELAY,
    HEALTHY_SECONDS,
    LONGEST_DELAY,
    Backoff,
    describe,
)


def test_backoff_begins_with_none_doubles_up_to_a_bound_and_forgets_after_good_health() -> None:
    backoff = Backoff()
    pauses = [backoff.after(uptime=0.1) for _ in range(9)]
    assert pauses[:4] == [0.0, FIRST_DELAY, 2 * FIRST_DELAY, 4 * FIRST_DELAY]
    assert pauses[-1] == LONGEST_DELAY
    assert backoff.after(uptime=HEALTHY_SECONDS) == 0.0


def test_ends_are_described_in_words() -> None:
    assert describe(-signal.SIGKILL) == "was killed by SIGKILL"
    assert describe(70) == "ended with exit code 70"
