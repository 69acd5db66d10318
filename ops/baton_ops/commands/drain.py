"""`baton drain WORKER`: the worker accepts no new sequences, hands over the running ones, and
exits.

A supervisor then restarts it, so draining the workers one by one restarts a fleet without losing a
token.
"""

from __future__ import annotations

import sys

from pydantic import Field
from pydantic_settings import CliPositionalArg

from baton.errors import BatonError, NotFound
from baton.process.lifecycle import fail
from baton.protocol import DrainWorker, Stats
from baton.settings import Settings
from baton_ops.commands.fleet import ask


class Drain(Settings, prefix="drain"):
    """Drain a worker: its sequences move to other workers, and it exits.

    Give the same --run-dir (or BATON_RUN_DIR) to `baton serve` and here, so that this command finds
    it.
    """

    worker: CliPositionalArg[str]
    """Its name, as shown by `baton fleet`."""
    seconds: float = Field(default=60.0, gt=0)
    """Time limit until the worker has nothing left to do."""


def drain(options: Drain) -> None:
    """Drain the worker. Raises `NotFound` for an unknown name, `Unavailable` on a time-out."""
    names = [w.name for w in ask(options, lambda stats: True).workers]
    if options.worker not in names:
        raise NotFound(f"There is no worker {options.worker}. Known: {', '.join(names) or 'none'}.")
    order = DrainWorker(options.worker)
    ask(options, lambda stats: _done(stats, options.worker), order, seconds=options.seconds)


def _done(stats: Stats, name: str) -> bool:
    """Return whether the worker is gone, or idle because a supervisor has restarted it."""
    return all(w.name != name or not w.running for w in stats.workers)


def main() -> None:
    """Drain, or print an error."""
    try:
        options = Drain.load(sys.argv[1:])
        drain(options)
    except BatonError as error:
        fail("baton drain", error)
    print(f"{options.worker} is drained")


if __name__ == "__main__":
    main()
