"""CPU threads of tensor operations, in workers and in the fork server that they come from."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import torch

from baton.process import standby
from baton.process.forked_call import call_in_fork

_WORTH_THREADS = 1 << 16
"""Numbers that torch gives each thread at least, and more."""
T = TypeVar("T")


def use_threads(number: int) -> None:
    """Run tensor operations on so many threads. A standby, from which workers are forked, has
    one."""
    torch.set_num_threads(1 if standby.held() else number)
    if standby.held():
        standby.when_active(partial(torch.set_num_threads, number))
        standby.when_active(wake_threads)


def wake_threads() -> None:
    """Start torch's own threads: they begin with the first operation that is worth several."""
    torch.zeros(_WORTH_THREADS * torch.get_num_threads())


def set_niceness(niceness: int) -> None:
    """Give all threads of this process a niceness, and so those that they start. The kernel prefers
    threads of a lower niceness on the same cores, such as those that streams wait for."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # It has ended.
            os.setpriority(os.PRIO_PROCESS, int(thread), niceness)


def with_threads(number: int, measure: Callable[[], T]) -> T:
    """What `measure` returns with so many threads, which a fork server must not start: it measures
    in a fork. Two threads share the arithmetic of a step and not the memory that it reads, so
    times of one thread say little about theirs.

    Raises:
        ChildProcessError: it failed in that fork.
    """
    if number == torch.get_num_threads() or not standby.forks():
        return measure()
    return call_in_fork(partial(_measured, number, measure))


def _measured(number: int, measure: Callable[[], T]) -> T:
    torch.set_num_threads(number)
    wake_threads()
    return measure()
