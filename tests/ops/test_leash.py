"""A service on a leash ends when the other end of its standard input does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

SUPERVISOR = textwrap.dedent(
    """
    import subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE)
    print(child.pid, flush=True)
    time.sleep(600)
    """
)
CHILD = textwrap.dedent(
    """
    import time
    import baton_ops.leash as leash
    leash.baton = lambda: time.sleep(600)
    leash.main()
    """
)


def test_children_do_not_survive_a_supervisor_that_was_killed() -> None:
    command = [sys.executable, "-c", SUPERVISOR, CHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        child = int(supervisor.stdout.readline())
        os.kill(child, 0)
        supervisor.send_signal(signal.SIGKILL)
    assert gone_within(20, child)


def test_a_leash_that_is_held_does_not_end_the_service() -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.write(b"x")
        child.stdin.flush()
        time.sleep(0.5)
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(timeout=20) == -signal.SIGKILL


def gone_within(seconds: float, pid: int) -> bool:
    """True when the process, which is not ours to wait for, is gone or a zombie by then."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False
