"""`baton fleet scale decode=3 prefill=1`: sets the number of workers per role under `baton serve`.

New workers are started; surplus workers drain first, so nothing is lost. Other platforms have their
own commands: `docker compose up --scale decode=3`, `kubectl scale deployment/decode`.
"""

from __future__ import annotations

import sys

from pydantic import Field
from pydantic_settings import CliPositionalArg

from baton.errors import BatonError, SettingsError, Unavailable
from baton.process.lifecycle import fail
from baton.protocol import Resize, Stats
from baton.settings import Settings
from baton_ops.commands.fleet import ask
from baton_ops.supervisor.control_socket import order, supervised


class Options(Settings, prefix="fleet_scale"):
    """Change how many workers a supervisor runs."""

    counts: CliPositionalArg[list[str]]
    """ROLE=NUMBER, once or more: prefill, decode, encode or both."""
    seconds: float = Field(default=300.0, gt=0)
    """Time limit until the scheduler reports them all as ready, and no others."""


def parse(words: list[str]) -> dict[str, int]:
    """Parse the numbers by role. Raises `SettingsError`."""
    counts = {}
    for word in words:
        role, _, number = word.partition("=")
        if not role or not number.isdecimal():
            raise SettingsError(f"'{word}' is not ROLE=NUMBER, like decode=3.")
        counts[role] = int(number)
    return counts


def scale(options: Options) -> dict[str, str]:
    """Scale and return the roles of all workers by name, once they are ready.

    Raises `SettingsError` when there is no supervisor or it rejects the request, `Unavailable` on a
    time-out.
    """
    counts = parse(options.counts)
    if not supervised(options.run_dir):
        raise SettingsError(
            f"{options.run_dir} has no supervisor of `baton serve` (give it and this command the "
            "same --run-dir). Compose and Kubernetes scale by themselves: --scale, kubectl scale."
        )
    workers = order(options.run_dir, Resize(counts))
    try:
        ask(options, lambda stats: _scaled(stats, workers), seconds=options.seconds)
    except Unavailable as error:
        raise Unavailable(f"{error.message} `baton fleet` shows how far it has come.") from error
    return workers


def _scaled(stats: Stats, workers: dict[str, str]) -> bool:
    """Return whether the requested number of each role is ready and no worker is draining."""
    expected, actual = sorted(workers.values()), sorted(w.role for w in stats.workers)
    return expected == actual and all(w.state == "ready" for w in stats.workers)


def main() -> None:
    """Scale, or print an error."""
    try:
        workers = scale(Options.load(sys.argv[1:]))
    except BatonError as error:
        fail("baton fleet scale", error)
    print("ready: " + ", ".join(f"{name} ({role})" for name, role in workers.items()))


if __name__ == "__main__":
    main()
