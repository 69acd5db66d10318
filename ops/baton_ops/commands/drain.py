"""`baton drain WORKER`: it takes nothing new, passes on what it runs, and ends.

Under a supervisor it starts again afterwards, so that draining one worker after the other restarts
a fleet without losing a token.
"""

from __future__ import annotations

import sys

from pydantic import Field
from pydantic_settings import CliPositionalArg

from baton.errors import BatonError, NotFound
from baton.protocol import DrainWorker, Stats
from baton.settings import Settings
from baton_ops.commands.fleet import ask


class Drain(Settings, prefix="drain"):
    """Let a worker pass on what it runs and end."""

    worker: CliPositionalArg[str]
    """Its name, as `baton fleet` shows it."""
    seconds: float = Field(default=60.0, gt=0)
    """How long to wait until it has nothing left to do."""


def drain(options: Drain) -> None:
    """Raises `NotFound` for a name that no worker has, `Unavailable` when it takes too long."""
    known = [w.name for w in ask(options, lambda stats: True).workers]
    if options.worker not in known:
        raise NotFound(f"There is no worker {options.worker}. Known: {', '.join(known) or 'none'}.")
    order = DrainWorker(options.worker)
    ask(options, lambda stats: _done(stats, options.worker), order, seconds=options.seconds)


def _done(stats: Stats, name: str) -> bool:
    """It is gone, or is there with nothing to do: a supervisor may have started it again."""
    return all(w.name != name or not w.running for w in stats.workers)


def main() -> None:
    """Drain, or say why not."""
    try:
        options = Drain.load(sys.argv[1:])
        drain(options)
    except BatonError as error:
        sys.exit(f"baton drain: {error.message}")
    print(f"{options.worker} has passed on everything")


if __name__ == "__main__":
    main()
