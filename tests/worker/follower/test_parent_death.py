"""A process exits when the write end of its parent's pipe closes, whatever it is doing."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

CODE = """
import sys, time
from baton_worker.follower.parent_death import die_with_parent
die_with_parent(sys.stdin.buffer)
print("held", flush=True)
while True:
    {busy}
"""


@pytest.mark.parametrize("busy", ["time.sleep(60)", "sum(range(1000))", "sys.stdin.buffer.read(1)"])
@pytest.mark.parametrize("unread", [b"", b"a command that nobody has read"])
def test_it_ends_with_its_holder(busy: str, unread: bytes) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CODE.format(busy=busy)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    process.stdin.write(unread)
    process.stdin.flush()
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(60) == -signal.SIGKILL
    process.stdout.close()
