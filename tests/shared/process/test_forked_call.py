"""Functions that are called in forks."""

from __future__ import annotations

import subprocess
import sys

CALLS = """
import os
from baton.process.forked_call import call_in_fork

written = []

def write():
    written.append(1)
    return os.getppid(), len(written)

def killed():
    os.kill(os.getpid(), 9)

assert call_in_fork(write) == (os.getpid(), 1)
assert not written
for wrong in (killed, lambda: 1 / 0):
    try:
        call_in_fork(wrong)
    except ChildProcessError as error:
        print(error)
"""


def test_a_call_returns_its_value_and_leaves_nothing_behind() -> None:
    """In a process of its own: that of the tests may have threads."""
    found = subprocess.run(
        [sys.executable, "-c", CALLS], capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines() == [
        "a fork ended with status -9",
        "a fork ended with status 1",
    ]
    assert "ZeroDivisionError" in found.stderr
