"""A hang counts only time in which the loop could have run."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from baton_ops.supervisor.liveness import HangDetector, LivenessProbe, probe
from tests.support.served_system import until

ASLEEP, AT_DISK, STOPPED, TRACED = (LivenessProbe(state, 1.0) for state in "SDTt")


def watched(
    detector: HangDetector, seen: Iterator[LivenessProbe | None], seconds: float = 60.0
) -> float:
    """Look ten times a second at one that has turned once; when it is given up, or infinity."""
    assert not detector.exceeded(True, next(seen), 100.0)
    for tick in range(1, int(10 * seconds)):
        if detector.exceeded(False, next(seen), 100.0 + tick / 10):
            return tick / 10
    return math.inf


def same(seen: LivenessProbe | None) -> Iterator[LivenessProbe | None]:
    while True:
        yield seen


def running(share: float) -> Iterator[LivenessProbe]:
    """One that has so much of a processor."""
    for tick in range(10**6):
        yield LivenessProbe("R", share * tick / 10)


def test_one_that_sleeps_is_given_up_after_its_patience() -> None:
    assert watched(HangDetector(10.0), same(ASLEEP)) == pytest.approx(10.0, abs=0.15)


@pytest.mark.parametrize(("share", "seconds"), [(1.0, 10.0), (0.25, 40.0), (0.0, math.inf)])
def test_one_that_runs_is_given_up_for_the_time_that_it_got(share: float, seconds: float) -> None:
    """A loop without end gets a core; one that waits for a core, on a machine that has too much to
    do, is not to blame."""
    assert watched(HangDetector(10.0), running(share)) == pytest.approx(seconds, abs=0.5)


@pytest.mark.parametrize("seen", [AT_DISK, STOPPED, TRACED, None])
def test_one_that_cannot_turn_is_not_given_up(seen: LivenessProbe | None) -> None:
    assert watched(HangDetector(1.0), same(seen)) == math.inf


def test_who_starts_may_take_as_long_as_it_takes() -> None:
    detector = HangDetector(1.0)
    assert not any(detector.exceeded(False, ASLEEP, tick / 10) for tick in range(1000))


def test_a_sign_forgives_everything() -> None:
    detector = HangDetector(1.0)
    for tick in range(1000):
        assert not detector.exceeded(tick % 9 == 0, ASLEEP, tick / 10)


def test_silence_counts_only_while_somebody_looks() -> None:
    detector = HangDetector(1.0)
    assert not detector.exceeded(True, ASLEEP, 0.0)
    assert not detector.exceeded(False, ASLEEP, 600.0), "the supervisor itself was stopped"


def test_the_next_process_is_another_one() -> None:
    detector = HangDetector(1.0)
    assert watched(detector, same(ASLEEP)) < 2.0
    detector.forget()
    assert not any(detector.exceeded(False, ASLEEP, tick / 10) for tick in range(1000))


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_system_tells_what_a_main_thread_does(sleeper: subprocess.Popen[bytes]) -> None:
    def state() -> str:
        seen = probe(sleeper.pid)
        return "" if seen is None else seen.state

    until(lambda: state() == "S", "it sleeps")
    own = probe(os.getpid())
    assert own is not None and own.state == "R" and own.seconds > 0
    sleeper.kill()
    sleeper.wait()
    assert probe(sleeper.pid) is None
