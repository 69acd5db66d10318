"""`baton fleet`: shows the workers as reported by the scheduler over the workers' link.

    baton fleet                          workers and roles
    baton fleet role WORKER decode       change the role of a running worker
    baton fleet scale decode=3           change the number of workers, under `baton serve`

Runs on any host that a worker could run on: with the sockets (`--run-dir`), or with the scheduler's
address and, for encrypted links, the CURVE keys.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing

from rich.console import Console
from rich.table import Table

from baton import __version__
from baton.errors import BatonError, Unavailable
from baton.net.curve import CurveKeys
from baton.net.discovery import directory
from baton.net.handshake import BEAT_SECONDS, incarnation
from baton.net.sockets import Client, wait
from baton.net.topology import FLEET
from baton.process.lifecycle import fail
from baton.protocol import Hello, Message, Stats
from baton.settings import Settings

_SECONDS = 5.0
"""Time limit for the scheduler's reply."""


class Show(Settings, prefix="fleet"):
    """Show the workers as reported by the scheduler, and what each role needs.

    `baton fleet role WORKER ROLE` changes the role of a worker, `baton fleet scale ROLE=NUMBER` the
    number of workers. Give the same --run-dir (or BATON_RUN_DIR) to `baton serve` and here, so that
    this command finds it.
    """


def ask(
    settings: Settings, until: Callable[[Stats], bool], *also: Message, seconds: float = _SECONDS
) -> Stats:
    """Send messages once, then poll the scheduler's stats until `until` holds, and return them.

    Raises `Unavailable` on a time-out.
    """
    keys = (
        None
        if settings.curve_keys_dir is None
        else CurveKeys.load(settings.curve_keys_dir, "worker")
    )
    me = Hello("health", f"operator-{incarnation()}", incarnation(), __version__)
    heard = False
    with (
        closing(directory(settings)) as where,
        Client(FLEET, where.first(FLEET), me.name.encode(), keys) as client,
    ):
        for stats in _reports(client, me, list(also), seconds):
            heard = True
            if until(stats):
                return stats
    if heard:
        raise Unavailable(f"The scheduler does not come so far within {seconds:g} s.")
    raise Unavailable(
        f"The scheduler does not answer within {seconds:g} s. `baton serve` keeps its sockets in a "
        "private directory: give it and this command the same --run-dir."
    )


def _reports(
    client: Client, hello: Hello, waiting: list[Message], seconds: float
) -> Iterator[Stats]:
    """Send the messages once and say hello at intervals; the stats that arrive after that, until
    the time limit."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        while waiting and client.send(waiting[0]):
            waiting.pop(0)
        client.send(hello)
        wait((client,), BEAT_SECONDS)
        for received in client.drain():
            if isinstance(received.message, Stats) and not waiting:
                yield received.message


def workers(stats: Stats) -> Table:
    """Return a table with one line per worker."""
    models = ", ".join(model.name for model in stats.models) or "no model yet"
    table = Table(title=f"{models}: {stats.running} running, {stats.waiting} waiting")
    ranked = any(w.rank >= 0 for w in stats.workers)
    for name in ("worker", "role", "state", *["rank"] * ranked, "device"):
        table.add_column(name)
    for name in ("streams", "KV", "pages free", "step", "tokens/s", "pulls"):
        table.add_column(name, justify="right")
    for w in stats.workers:
        device, pages, used = f"{w.device} {w.dtype}", "", ""
        if w.pages_total:  # An encode worker has none.
            pages = f"{w.pages_free} of {w.pages_total}"
            used = f"{1 - w.pages_free / w.pages_total:.0%}"
        pulls = f"{w.pull_rate / 1e6:.0f} MB/s" if w.pull_rate else ""
        speed = (f"{w.step_ms:.1f} ms", f"{w.tokens_per_second:.0f}", pulls)
        rank = [str(w.rank) if w.rank >= 0 else ""] * ranked
        table.add_row(
            w.name, w.role, w.state, *rank, device, str(w.running), used, pages, *speed
        )  # fmt: skip
    return table


def roles(stats: Stats) -> Table:
    """Return a table with one line per role: current and recommended number, and the reason."""
    table = Table(title=f"{stats.handoffs} passed on, {stats.transferred_tokens} tokens moved")
    table.add_column("role")
    for name in ("ready", "wanted", "queue", "first token", "next token"):
        table.add_column(name, justify="right")
    table.add_column("pressed by")
    for r in stats.roles:
        times = (f"{r.queue_seconds:.1f} s", f"{r.ttft_seconds:.2f} s")
        part, most = max(r.pressure.items(), key=lambda item: item[1], default=("", 0.0))
        why = f"{part}, {most:.0%} of its target" if most else ""
        steps = f"{1000 * r.itl_seconds:.0f} ms"
        table.add_row(r.role, str(r.ready), str(r.desired), *times, steps, why)
    return table


def main() -> None:
    """Print both tables, or an error."""
    try:
        stats = ask(Show.load(sys.argv[1:]), lambda stats: True)
    except BatonError as error:
        fail("baton fleet", error)
    console = Console()
    console.print(workers(stats))
    if stats.roles:
        console.print(roles(stats))


if __name__ == "__main__":
    main()
