"""`baton fleet role WORKER prefill|decode|both`: changes the role of a running worker.

Nothing is restarted or lost: sequences that the new role excludes move to other workers with their
KV, and cached KV stays. The worker reports its role whenever it rejoins a scheduler. A supervisor
on this host is notified too, so that a restarted process keeps the role.
"""

from __future__ import annotations

import sys
from typing import Literal

from pydantic import Field
from pydantic_settings import CliPositionalArg

from baton.errors import BatonError, NotFound, SettingsError, Unavailable
from baton.process.lifecycle import fail
from baton.protocol import SetRole, Stats
from baton.settings import Settings
from baton_ops.commands.fleet import ask
from baton_ops.supervisor.control_socket import order, supervised


class Options(Settings, prefix="fleet_role"):
    """Change the role of a running worker."""

    worker: CliPositionalArg[str]
    """Its name, as shown by `baton fleet`."""
    role: CliPositionalArg[Literal["prefill", "decode", "both"]]
    """prefill, decode or both."""
    seconds: float = Field(default=60.0, gt=0)
    """Time limit until the scheduler reports the role."""


def assign(options: Options) -> str:
    """Change the role. Returns why a restart of the worker would revert it; empty if it would not.

    Raises `NotFound` for an unknown worker, `Unavailable` on a time-out.
    """
    roles = {w.name: w.role for w in ask(options, lambda stats: True).workers}
    if options.worker not in roles:
        raise NotFound(f"There is no worker {options.worker}. Known: {', '.join(roles) or 'none'}.")
    if roles[options.worker] == "encode":
        raise SettingsError(
            f"{options.worker} is an encode worker, which has no decoder: its role stays. Change "
            "the number of them: baton fleet scale encode=N."
        )
    message = SetRole(options.worker, options.role)
    ask(options, lambda stats: _shown(stats, message), message, seconds=options.seconds)
    if not supervised(options.run_dir):
        return ""
    try:
        order(options.run_dir, message)
    except (SettingsError, Unavailable) as error:
        return error.message
    return ""


def _shown(stats: Stats, order: SetRole) -> bool:
    return any(w.name == order.name and w.role == order.role for w in stats.workers)


def main() -> None:
    """Change the role, or print an error."""
    try:
        options = Options.load(sys.argv[1:])
        warning = assign(options)
    except BatonError as error:
        fail("baton fleet role", error)
    print(f"{options.worker} is {options.role} now" + (f" ({warning})" if warning else ""))


if __name__ == "__main__":
    main()
