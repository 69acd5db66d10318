"""Wires between the services that can be cut, broken and slowed down.

    client --here--> wire --there--> server

A process of its own, so that the load does not slow it down. One order per line comes on its
standard input: `NAME cut`, `NAME break`, `NAME slow`, `NAME heal`. It ends with its input.

    python -m tests.chaos.wires NAME=HERE=THERE ...      (ipc:// or tcp:// addresses)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

_PORTS = range(10_000, 30_000)
_CHUNK = 65_536
_QUEUED = 256
"""Chunks on their way in one direction; then the sender must wait."""
_SLOW_SECONDS = 0.15
"""Latency of a slow wire, each way."""
_SLOW_BYTES = 100_000.0
"""Bytes per second of a slow wire, each way."""


class Wire:
    """All connections of one link, both ways."""

    def __init__(self, here: str, there: str) -> None:
        self._here, self._there = here, there
        self._whole = asyncio.Event()
        self._whole.set()
        self._slow = False
        self._ends: set[asyncio.StreamWriter] = set()

    async def serve(self) -> None:
        """Accept until cancelled."""
        kind, end = _end(self._here)
        if kind == "tcp":
            server = await asyncio.start_server(self._accept, *end)
        else:
            server = await asyncio.start_unix_server(self._accept, *end)
        await server.serve_forever()

    def order(self, what: str) -> None:
        """Cut: nothing passes, nothing closes. Break: every connection closes at once."""
        if what == "break":
            for end in self._ends:
                end.transport.abort()
        self._slow = what == "slow"
        if what == "cut":
            self._whole.clear()
        else:
            self._whole.set()

    async def _accept(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        self._ends.add(back)
        try:
            await self._whole.wait()
            far, forth = await self._connect()
        except OSError:  # The server is not there: neither is the connection.
            self._close(back)
            return
        self._ends.add(forth)
        ways = [asyncio.ensure_future(w) for w in (self._pass(near, forth), self._pass(far, back))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        self._close(back)
        self._close(forth)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        kind, end = _end(self._there)
        if kind == "tcp":
            return await asyncio.open_connection(*end)
        return await asyncio.open_unix_connection(*end)

    def _close(self, end: asyncio.StreamWriter) -> None:
        self._ends.discard(end)
        end.transport.abort()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """One direction, in order, until either side closes."""
        flow: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUED)
        sending = asyncio.create_task(self._send(flow, target))
        try:
            while data := await source.read(_CHUNK):
                await flow.put((time.monotonic() + _SLOW_SECONDS * self._slow, data))
            await flow.join()
        except OSError:
            return
        finally:
            sending.cancel()

    async def _send(
        self, flow: asyncio.Queue[tuple[float, bytes]], target: asyncio.StreamWriter
    ) -> None:
        while True:
            due, data = await flow.get()
            await self._whole.wait()
            pause = due - time.monotonic() if self._slow else 0.0
            await asyncio.sleep(max(0.0, pause) + self._slow * len(data) / _SLOW_BYTES)
            await self._whole.wait()
            if not target.is_closing():
                target.write(data)
                with contextlib.suppress(OSError):
                    await target.drain()
            flow.task_done()


def _end(address: str) -> tuple[str, tuple[str, ...]]:
    """Kind of an address, and what asyncio wants to know of it."""
    kind, _, rest = address.partition("://")
    return kind, tuple(rest.split(":")) if kind == "tcp" else (rest,)


def free_port() -> int:
    """A port of this host that nobody has, and that the system gives to nobody who asks for any:
    it may take a while until it is bound."""
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


async def run(table: Mapping[str, tuple[str, str]]) -> None:
    """Serve all wires, carry out orders until there are no more."""
    wires = {name: Wire(*ends) for name, ends in table.items()}
    serving = [asyncio.create_task(wire.serve()) for wire in wires.values()]
    loop, lines = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        name, what = line.decode().split()
        wires[name].order(what)
    for task in serving:
        task.cancel()


class Wires:
    """The other process, as its owner sees it. Life cycle: a context."""

    def __init__(self, folder: Path, table: Mapping[str, str]) -> None:
        """`table`: name of a wire to the address of its server; this end is of the same kind."""
        self.names = sorted(table)
        self._near = {n: _near(folder, n, there) for n, there in table.items()}
        ends = [f"{n}={self._near[n]}={there}" for n, there in table.items()]
        self._command = [sys.executable, "-m", "tests.chaos.wires", *ends]
        self._process: subprocess.Popen[bytes] | None = None

    def address(self, name: str) -> str:
        """Where a client of this wire connects."""
        return self._near[name]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, process_group=0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def order(self, name: str, what: str) -> None:
        """`cut`, `break`, `slow` or `heal` a wire."""
        assert self._process is not None and self._process.stdin is not None
        if self._process.stdin.closed:  # A timer that heals comes after the end of the run.
            return
        with contextlib.suppress(BrokenPipeError, ValueError):  # The run is over.
            self._process.stdin.write(f"{name} {what}\n".encode())
            self._process.stdin.flush()


def _near(folder: Path, name: str, there: str) -> str:
    if there.startswith("tcp://"):
        return f"tcp://127.0.0.1:{free_port()}"
    return f"ipc://{folder}/wire-{name}.sock"


def main() -> None:
    """Serve until standard input ends."""
    os.umask(0o077)
    table = {name: (here, there) for name, here, there in (a.split("=") for a in sys.argv[1:])}
    asyncio.run(run(table))


if __name__ == "__main__":
    main()
