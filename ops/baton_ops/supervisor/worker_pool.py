"""The workers of one supervisor, by role: more of them, fewer, or with other roles.

One that is to go drains, as it does on SIGTERM: what it runs goes on elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count

from baton.errors import SettingsError
from baton.logs import logger
from baton_ops.supervisor.supervisor import Supervisor

NAMES = {"both": "worker", "prefill": "prefill", "decode": "decode"}
"""What workers of a role are called, with a number behind it."""
MOST = 64
"""Workers of one supervisor."""

log = logger(__name__)


class WorkerPool:
    """Which workers there are, and what each was asked to be."""

    def __init__(
        self,
        supervisor: Supervisor,
        workers: Mapping[str, str],
        command: Callable[[str, str, int], list[str]],
        fixed: bool = False,
    ) -> None:
        """`command(name, role, count)`: how one of `count` workers is started. `fixed`: they share
        one model's experts, so none can be left out."""
        self.workers = dict(workers)
        """Roles by names."""
        self._fixed = fixed
        self._supervisor, self._command = supervisor, command

    def resize(self, counts: Mapping[str, int]) -> None:
        """Have so many workers of each role that is named.

        Raises `SettingsError`, before anything is changed, for a role that there is not, a number
        that is out of range, when no worker would be left, or when their number is fixed.
        """
        if self._fixed:
            raise SettingsError(
                "These workers share their experts: end the system, and start it with another "
                "--data-parallel-size."
            )
        unknown = counts.keys() - NAMES.keys()
        if unknown:
            raise SettingsError(f"There is no role {min(unknown)}. Known: {', '.join(NAMES)}.")
        whole = {role: len(self._of(role)) for role in NAMES} | dict(counts)
        if min(whole.values()) < 0 or not 1 <= sum(whole.values()) <= MOST:
            raise SettingsError(f"A crew has 1 to {MOST} workers.")
        for role in counts:  # More first: who leaves passes on what it runs.
            self._hire(role, whole[role] - len(self._of(role)), sum(whole.values()))
        for role in counts:
            self._retire(role, len(self._of(role)) - whole[role])

    def assign(self, name: str, role: str) -> None:
        """A worker has another role now: a restart keeps it. Raises `SettingsError` for a name that
        no worker here was started with."""
        child = self._supervisor.children.get(name)
        if name not in self.workers or child is None or "--role" not in child.command:
            raise SettingsError(f"{name} was not started by name here: a restart forgets its role.")
        child.command[child.command.index("--role") + 1] = role
        self.workers[name] = role

    def _of(self, role: str) -> list[str]:
        return [name for name, own in self.workers.items() if own == role]

    def _hire(self, role: str, number: int, total: int) -> None:
        for _ in range(number):
            taken = self._supervisor.children
            name = next(n for n in map(f"{NAMES[role]}-{{}}".format, count(1)) if n not in taken)
            log.info("starting %s", name)
            self._supervisor.hire(name, self._command(name, role, max(2, total)))
            self.workers[name] = role

    def _retire(self, role: str, number: int) -> None:
        for name in self._of(role)[::-1][: max(0, number)]:
            log.info("%s is told to leave", name)
            self._supervisor.retire(name)
            del self.workers[name]
