"""A child exits when its supervisor closes its standard input."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from baton_ops.supervisor.processes.child_process import ChildProcess
from baton_ops.supervisor.processes.forked_process import ForkRequest
from tests.support.served_system import until

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
    import baton_ops.supervisor.child_main as child
    child.baton = lambda: time.sleep(600)
    child.main()
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


SPARE = textwrap.dedent(
    """
    import sys
    sys.argv = ["child", "--spare", "worker", "--threads", "1"]
    import baton_ops.supervisor.child_main as child
    from baton.process import standby
    def service():
        print(*sys.argv[1:], open("/proc/self/comm").read().strip(), flush=True)
        print(*standby.wait(), end=" ")
        print(open("/proc/self/comm").read().strip(), flush=True)
    child.baton = service
    child.main()
    """
)


@pytest.mark.skipif(sys.platform != "linux", reason="reads its name in /proc")
def test_a_spare_waits_for_its_call() -> None:
    command = [sys.executable, "-c", SPARE]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as spare:
        assert spare.stdin is not None and spare.stdout is not None
        assert spare.stdout.readline().split() == ["worker", "--threads", "1", "baton-spare"]
        time.sleep(0.3)
        assert spare.poll() is None
        spare.stdin.write('["python", "-m", "child", "worker", "--name", "decode-1"]\n')
        spare.stdin.flush()
        assert spare.stdout.readline().split() == ["--name", "decode-1", "baton-decode-1"]


FORK_SERVER = textwrap.dedent(
    """
    import sys
    sys.argv = ["child", "--fork-server", "worker", "--threads", "1"]
    import baton_ops.supervisor.child_main as child
    from baton.process import standby
    from baton.process.watchdog import pulse
    def service():
        standby.when_active(lambda: print("active", end=" ", flush=True))
        print(*standby.wait(), open("/proc/self/comm").read().strip(), flush=True)
        while True:
            pulse.beat()
    child.baton = service
    child.main()
    """
)


@pytest.mark.skipif(sys.platform != "linux", reason="forks to its parent")
def test_a_fork_server_forks_workers_that_end_with_the_supervisor(
    capfd: pytest.CaptureFixture[str],
) -> None:
    server = ChildProcess([sys.executable, "-c", FORK_SERVER], os.environ)
    try:
        for name in ("worker-1", "decode-2"):
            request = ForkRequest(server, ["child", "worker", "--name", name])
            until(lambda made=request: made.poll() is not None, "a fork")
            fork = request.poll()
            assert fork is not None and server.poll() is None
            until(fork.has_reported, "its loop turns")
            assert capfd.readouterr().out.split() == ["active", "--name", name, f"baton-{name}"]
            request.close()
            assert fork.wait() == -signal.SIGKILL
    finally:
        server.kill()
        server.close()


def test_a_control_socket_that_is_held_does_not_end_the_service() -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.write(b"x")
        child.stdin.flush()
        time.sleep(0.5)
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(timeout=60) == -signal.SIGKILL


TELLING = textwrap.dedent(
    """
    import os, time
    import baton_ops.supervisor.child_main as child
    from baton.process.watchdog import pulse
    def service():
        while True:
            pulse.beat()
            time.sleep(0.01)
    child.baton = service
    child.main()
    """
)


def test_a_service_tells_by_its_control_socket_that_it_turns_and_ends_with_signs_unread() -> None:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", TELLING]
    with ours, subprocess.Popen(command, stdin=theirs.fileno()) as child:
        theirs.close()
        ours.settimeout(60)
        for _ in range(2):
            assert set(ours.recv(100)) == set(b".")
        time.sleep(0.5)
        ours.close()
        assert child.wait(timeout=60) == -signal.SIGKILL


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
