"""Threads of a worker, and of the fork server that it comes from."""

from __future__ import annotations

import subprocess
import sys

FORK_SERVER = """
import os, torch
from baton.process import standby
from baton_worker.platform.cpu_threads import set_niceness, use_threads, with_threads

standby.hold(forks=lambda seconds: ["--name", "worker-1"])
use_threads(2)
torch.ones(1 << 20).sum()
print(torch.get_num_threads(), with_threads(2, torch.get_num_threads), with_threads(1, os.getpid))
print(len(os.listdir("/proc/self/task")))
standby.wait()
print(torch.get_num_threads(), with_threads(3, torch.get_num_threads))
set_niceness(7)
threads = os.listdir("/proc/self/task")
print(len(threads) > 1, *{os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in threads})
"""


def test_a_fork_server_has_one_thread_and_measures_with_those_of_its_workers() -> None:
    command = [sys.executable, "-c", FORK_SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        own = str(process.pid)
        lines = [line.split() for line in process.stdout]
    # One thread of the fork server; several in its worker, all with the niceness.
    assert lines == [["1", "2", own], ["1"], ["2", "2"], ["True", "7"]]
