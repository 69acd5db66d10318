"""Forks whose parent is the parent of the process that forks, and what `ps` shows of them."""

from __future__ import annotations

import ast
import os
import select
import signal
import subprocess
import sys
import threading

import pytest

from baton.process import clone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="system calls of Linux")
FORKING = r"""
import os, random, sys, threading
from baton.process.clone import fork_sibling
random.seed(1)
forked = fork_sibling()
if forked:
    os.write(1, f"{forked} {random.random()}\n".encode())
    sys.stdin.read()
    raise SystemExit(0)
thread = threading.Thread(target=lambda: None)
thread.start()
thread.join()
own = threading.get_native_id() == os.getpid()
os.write(1, f"{os.getppid()} {own} {random.random()}\n".encode())
os.kill(os.getpid(), 11)
"""


def test_the_parent_of_a_fork_learns_how_it_ends_and_its_hooks_have_run() -> None:
    """The generator of random numbers is seeded anew by a hook of Python's."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", FORKING]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        lines = sorted((process.stdout.readline().split() for _ in range(2)), key=len)
        (pid, value), (parent, own, other) = lines
        assert int(parent) == os.getpid() and own == "True" and value != other
        assert os.waitpid(int(pid), 0) == (int(pid), signal.SIGSEGV)
    assert process.returncode == 0


def test_what_cannot_be_forked_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        with pytest.raises(OSError, match=r"the process has [0-9]+ threads"):
            clone.fork_sibling()
    finally:
        over.set()
        thread.join()
    monkeypatch.setattr(os, "listdir", lambda path: ["1"])
    monkeypatch.setattr("platform.machine", lambda: "pdp11")
    with pytest.raises(OSError, match="Linux on pdp11 is not known here"):
        clone.fork_sibling()


def test_a_process_dies_with_its_parent() -> None:
    child = "from baton.process.clone import die_with_parent as d; d(); print(); input()"
    parent = (
        "import subprocess as s, sys\n"
        f"p = s.Popen([sys.executable, '-c', {child!r}], stdin=s.PIPE, stdout=s.PIPE)\n"
        "p.stdout.readline(); print(p.pid, flush=True); input()"
    )
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", parent]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        watched = os.pidfd_open(int(process.stdout.readline()))
        process.kill()
        try:
            assert select.select([watched], [], [], 20)[0], "it lives on"
        finally:
            os.close(watched)


SHOWN = """
from pathlib import Path
from baton.process.clone import set_command_line
for words in (["baton", "gateway"], ["long" * 500], ["baton"]):
    set_command_line(words)
    print(Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0"))
set_command_line(["elsewhere"], Path("/nowhere"))
"""


def test_the_command_line_has_the_given_words_as_far_as_there_is_room() -> None:
    done = subprocess.run([sys.executable, "-c", SHOWN], capture_output=True, text=True, check=True)
    short, long, again = map(ast.literal_eval, done.stdout.splitlines())
    assert short == b"baton\0gateway" and again == b"baton"
    assert b"long" * 25 in long and len(long) < 2000
