"""Workers of one supervisor by role: adds, removes and reassigns them.

A removed worker drains as on SIGTERM: its sequences continue on other workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count

from baton.errors import SettingsError
from baton.logs import logger
from baton_ops.supervisor.child import InactivityLimits
from baton_ops.supervisor.supervisor import Supervisor

NAMES = {"both": "worker", "prefill": "prefill", "decode": "decode", "encode": "encode"}
"""Name prefixes of workers by role; a number follows."""
MOST = 64
"""Maximum workers of one supervisor."""

log = logger(__name__)


class WorkerPool:
    """The workers and their assigned roles."""

    def __init__(
        self,
        supervisor: Supervisor,
        workers: Mapping[str, str],
        command: Callable[[str, str, int], list[str]],
        fixed: bool = False,
        on_retire: Callable[[str], None] = lambda name: None,
        spare: Callable[[str, str, int], list[str] | None] = lambda name, role, count: None,
        limits: InactivityLimits | None = None,
    ) -> None:
        """`command(name, role, count)`: command line of one of `count` workers, and `spare` that of
        its standby process, if it has one of its own.

        `on_retire`: called with the name of a worker that leaves permanently. `limits`: inactivity
        limits of added workers.
        """
        self.workers = dict(workers)
        """Role by worker name."""
        self._fixed, self._on_retire = fixed, on_retire
        self._supervisor, self._command, self._spare = supervisor, command, spare
        self._limits = limits

    def resize(self, counts: Mapping[str, int]) -> None:
        """Set the number of workers of each given role.

        Raises `SettingsError`, before any change, for an unknown role, a number out of range, a
        pool without workers, or a fixed pool.
        """
        if self._fixed:
            raise SettingsError(
                "These workers share their experts: end the system, and start it with another "
                "--data-parallel-size."
            )
        unknown = counts.keys() - NAMES.keys()
        if unknown:
            raise SettingsError(f"There is no role {min(unknown)}. Known: {', '.join(NAMES)}.")
        targets = {role: len(self._of(role)) for role in NAMES} | dict(counts)
        if min(targets.values()) < 0 or not 1 <= sum(targets.values()) <= MOST:
            raise SettingsError(f"A supervisor has 1 to {MOST} workers.")
        if sum(targets.values()) == targets["encode"]:
            raise SettingsError("Encode workers run no sequence: leave another worker beside them.")
        # Start new workers first: removed ones hand their sequences off to them.
        for role in counts:
            self._add(role, targets[role] - len(self._of(role)), sum(targets.values()))
        for role in counts:
            self._retire(role, len(self._of(role)) - targets[role])

    def assign(self, name: str, role: str) -> None:
        """Record the new role of a worker, so that a restart keeps it.

        Raises `SettingsError` when no worker of this pool has that name.
        """
        if "encode" in (role, self.workers.get(name)):
            raise SettingsError("The role of an encode worker stays: it has no decoder.")
        child = self._supervisor.children.get(name)
        if name not in self.workers or child is None or "--role" not in child.command:
            raise SettingsError(f"{name} was not started by name here: a restart forgets its role.")
        child.command[child.command.index("--role") + 1] = role
        self.workers[name] = role

    def _of(self, role: str) -> list[str]:
        return [name for name, assigned in self.workers.items() if assigned == role]

    def _add(self, role: str, number: int, total: int) -> None:
        for _ in range(number):
            children = self._supervisor.children
            name = next(n for n in map(f"{NAMES[role]}-{{}}".format, count(1)) if n not in children)
            log.info("starting %s", name)
            worker = (name, role, max(2, total))
            self._supervisor.add(name, self._command(*worker), self._spare(*worker), self._limits)
            self.workers[name] = role

    def _retire(self, role: str, number: int) -> None:
        for name in self._of(role)[::-1][: max(0, number)]:
            log.info("draining %s", name)
            self._supervisor.retire(name)
            self._on_retire(name)
            del self.workers[name]
