"""`baton fleet`: the workers as the scheduler sees them, asked over the workers' own link.

Works wherever a worker could run: on the host with the sockets (`--run-dir`), or with the address
of the scheduler and, where links are encrypted, the keys.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing

from rich.console import Console
from rich.table import Table

from baton import __version__
from baton.discovery import directory
from baton.errors import BatonError, Unavailable
from baton.keys import Keys
from baton.peers import BEAT_SECONDS, incarnation
from baton.protocol import Hello, Message, Stats
from baton.settings import Settings
from baton.topology import FLEET
from baton.transport import Client, wait

_SECONDS = 5.0
"""How long the scheduler may take to answer."""


class Show(Settings, prefix="fleet"):
    """Show the workers as the scheduler sees them."""


def ask(
    settings: Settings, until: Callable[[Stats], bool], *also: Message, seconds: float = _SECONDS
) -> Stats:
    """Send messages once, then ask until the scheduler's view is as wanted, and return it.

    Raises `Unavailable` when it does not become so.
    """
    keys = None if settings.keys_dir is None else Keys.load(settings.keys_dir, "worker")
    me = Hello("health", f"operator-{incarnation()}", incarnation(), __version__)
    waiting, heard = list(also), False
    deadline = time.monotonic() + seconds
    with (
        closing(directory(settings)) as where,
        Client(FLEET, where.first(FLEET), me.name.encode(), keys) as client,
    ):
        while time.monotonic() < deadline:
            while waiting and client.send(waiting[0]):
                waiting.pop(0)
            client.send(me)
            wait((client,), BEAT_SECONDS)
            for received in client.drain():
                if isinstance(received.message, Stats) and not waiting:
                    heard = True
                    if until(received.message):
                        return received.message
    what = "does not come so far" if heard else "does not answer"
    raise Unavailable(f"The scheduler {what} within {seconds:g} s.")


def table(stats: Stats) -> Table:
    """One line per worker."""
    made = Table(title=f"{stats.model or 'no model yet'}: {stats.running} running, "
                       f"{stats.waiting} waiting")  # fmt: skip
    for name in ("worker", "role", "state", "device"):
        made.add_column(name)
    for name in ("running", "pages free", "step", "tokens/s"):
        made.add_column(name, justify="right")
    for w in stats.workers:
        device, pages = f"{w.device} {w.dtype}", f"{w.pages_free} of {w.pages_total}"
        speed = (f"{w.step_ms:.1f} ms", f"{w.tokens_per_second:.0f}")
        made.add_row(w.name, w.role, w.state, device, str(w.running), pages, *speed)
    return made


def main() -> None:
    """Print the table, or say why not."""
    try:
        Console().print(table(ask(Show.load(sys.argv[1:]), lambda stats: True)))
    except BatonError as error:
        sys.exit(f"baton fleet: {error.message}")


if __name__ == "__main__":
    main()
