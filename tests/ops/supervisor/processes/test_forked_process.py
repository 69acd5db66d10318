"""A fork server of toy processes: its forks are children of the supervisor, and it may die."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baton_ops.supervisor.spare import ForkedServices
from baton_ops.supervisor.supervisor import Supervisor
from tests.fakes.supervisor_loop import tick_until
from tests.support.system.running_system import alive

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks to its parent")
TURNING = """
import os, socket, time
from baton.process.watchdog import pulse
pulse.attach(socket.socket(fileno=os.dup(0)))
while True:
    pulse.beat()
    time.sleep(0.05)
"""
"""A service whose loop turns."""
FORKING = """
from baton.process.fork_server import ForkServer
command = ForkServer().wait()
if command[-1] == "faulty":
    raise SystemExit(7)
"""
NAMES = ("one", "two")


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Supervisor]]:
    """Supervisors of services that are forked from a process which runs some code."""
    monkeypatch.setattr("baton_ops.supervisor.child.FIRST_SPARE_SECONDS", 0.0)
    monkeypatch.setattr("baton_ops.supervisor.child.SPARE_SECONDS", 0.0)
    monkeypatch.setattr("baton_ops.supervisor.spare.FIRST_DELAY", 0.1)
    made = list[Supervisor]()

    def built(code: str, names: tuple[str, ...] = NAMES) -> Supervisor:
        commands = {name: [sys.executable, "-c", TURNING, "worker", name] for name in names}
        forked = ForkedServices(names, [sys.executable, "-c", code], ("more",))
        made.append(Supervisor(commands, os.environ, 5.0, forked=[forked]))
        return made[-1]

    yield built
    for supervisor in made:
        supervisor.kill()


def pids(supervisor: Supervisor) -> list[int]:
    running = [supervisor.children[name].process for name in supervisor.children]
    return [process.pid for process in running if process is not None]


def server_of(supervisor: Supervisor) -> int:
    """Its process id; 0 while there is none."""
    [group] = supervisor._fork_groups
    process = group.server._process
    return 0 if process is None or process.poll() is not None else process.pid


def whole(supervisor: Supervisor, *dead: int) -> Callable[[], bool]:
    """Whether all run whose names it knows, none of them one of the dead."""
    return lambda: (
        len(pids(supervisor)) == len(supervisor.children) and not {*dead} & {*pids(supervisor)}
    )


def field(pid: int, number: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[number])


def words(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def test_all_are_forked_at_the_start_and_when_they_die_together(
    build: Callable[..., Supervisor],
) -> None:
    """They are children of the supervisor in groups of their own; it sees how they end."""
    supervisor, deaths = build(FORKING + TURNING), dict[int, int]()
    supervisor.report_to(deaths.__setitem__)
    supervisor.start()
    server = server_of(supervisor)
    tick_until(supervisor, whole(supervisor))
    firsts = pids(supervisor)
    for pid in firsts:
        assert [field(pid, n) for n in (1, 2)] == [os.getpid(), pid]
        assert words(pid) == words(server)
    for pid, number in zip(firsts, (signal.SIGKILL, signal.SIGSEGV), strict=True):
        os.kill(pid, number)
    tick_until(supervisor, whole(supervisor, *firsts))
    assert deaths == {firsts[0]: -signal.SIGKILL, firsts[1]: -signal.SIGSEGV}
    seconds = pids(supervisor)
    assert all(field(pid, 1) == os.getpid() for pid in seconds) and server_of(supervisor) == server
    supervisor.add("more-1", [sys.executable, "-c", TURNING, "worker", "more-1"])
    supervisor.add("other-1", [sys.executable, "-c", TURNING, "worker", "other-1"])
    tick_until(supervisor, whole(supervisor))
    added_later, other = pids(supervisor)[2:]
    assert words(added_later) == words(server), "what is added later is forked too"
    assert TURNING in words(other), "unless it is of another kind"
    supervisor.children["one"].command[-1] = "faulty"
    os.kill(seconds[0], signal.SIGKILL)
    tick_until(supervisor, lambda: 7 in deaths.values())
    supervisor.drain()
    assert not any(map(alive, [server, *firsts, *seconds, added_later, other]))


def test_a_server_that_dies_costs_a_start_without_it_and_comes_back(
    build: Callable[..., Supervisor],
) -> None:
    supervisor = build(FORKING + TURNING)
    supervisor.start()
    tick_until(supervisor, whole(supervisor))
    server, firsts = server_of(supervisor), pids(supervisor)
    os.kill(server, signal.SIGKILL)
    tick_until(supervisor, lambda: server_of(supervisor) not in (0, server))
    assert pids(supervisor) == firsts, "its forks live on"
    for pid in (server_of(supervisor), *firsts):
        os.kill(pid, signal.SIGKILL)
    tick_until(supervisor, whole(supervisor, *firsts))
    assert TURNING in words(pids(supervisor)[0])


def test_services_that_wait_for_a_server_start_without_it_when_it_dies(
    build: Callable[..., Supervisor],
) -> None:
    """But for the first one, if no restart can help it: that is the verdict on all."""
    supervisor = build("import sys; sys.stdin.buffer.read(1); sys.exit(70)")
    supervisor.start()
    supervisor.tick()
    assert pids(supervisor) == []
    tick_until(supervisor, whole(supervisor))
    assert supervisor.fatal_exit is None and supervisor.restarts() == 0
    unrecoverable = build("import sys; sys.exit(3)")
    unrecoverable.start()
    tick_until(unrecoverable, lambda: unrecoverable.fatal_exit == ("one", 3))
    assert pids(unrecoverable) == []
    # Later ones may lack the memory that others take by now.
    [group] = supervisor._fork_groups
    group.server._command[-1] = "import sys; sys.stdin.buffer.read(1); sys.exit(2)"
    tick_until(supervisor, lambda: server_of(supervisor) != 0)
    first = pids(supervisor)[0]
    os.kill(first, signal.SIGKILL)
    tick_until(supervisor, whole(supervisor, first))
    assert supervisor.fatal_exit is None and supervisor.restarts() == 1


def test_one_that_leaves_before_it_is_forked_ends_once_it_is(
    build: Callable[..., Supervisor], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    waiting = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.02)\n"
    supervisor = build(waiting + FORKING + TURNING)
    supervisor.start()
    supervisor.retire("two")
    supervisor.tick()
    assert list(supervisor.children) == ["one"]
    before = children() - {server_of(supervisor)}
    gate.touch()
    tick_until(supervisor, whole(supervisor))
    tick_until(
        supervisor, lambda: children() <= {server_of(supervisor), *pids(supervisor), *before}
    )


def children() -> set[int]:
    """Processes of this one, dead ones that nobody has waited for included."""
    mine = Path("/proc/self/task").glob("*/children")
    return {int(number) for path in mine for number in path.read_text().split()}


def test_a_server_that_cannot_fork_serves_itself(build: Callable[..., Supervisor]) -> None:
    """As one with a second thread, of which a fork would have nothing."""
    thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
    supervisor = build(thread + FORKING + TURNING, NAMES[:1])
    supervisor.start()
    server = server_of(supervisor)
    tick_until(supervisor, whole(supervisor))
    assert pids(supervisor) == [server]
    os.kill(server, signal.SIGKILL)
    tick_until(supervisor, whole(supervisor, server))
