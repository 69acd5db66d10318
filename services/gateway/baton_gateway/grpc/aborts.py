"""Running requests that `Abort` may end, by their clients' ids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager

from baton_gateway.generation.output import Event, OutputDelta
from baton_gateway.http.disconnect import cancel_tasks


class Aborts:
    """The running requests of each tenant. Tenants do not share ids."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], set[asyncio.Event]] = {}

    @contextmanager
    def open(self, tenant: str, request_id: str) -> Iterator[asyncio.Event]:
        """Yield the event that is set when the request is aborted."""
        event, name = asyncio.Event(), (tenant, request_id)
        self._running.setdefault(name, set()).add(event)
        try:
            yield event
        finally:
            self._running[name].discard(event)
            if not self._running[name]:
                del self._running[name]

    def abort(self, tenant: str, request_id: str) -> None:
        """Abort the requests of this id, if there are any."""
        for event in self._running.get((tenant, request_id), ()):
            event.set()


async def deltas_until(
    events: AsyncGenerator[Event, None], aborted: asyncio.Event
) -> AsyncIterator[OutputDelta]:
    """Yield the deltas of a generation until it ends or is aborted."""
    abort = asyncio.ensure_future(aborted.wait())
    try:
        while True:
            step = asyncio.ensure_future(anext(events, None))
            try:
                await asyncio.wait((step, abort), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not step.done():
                    await cancel_tasks(step)
            if step.cancelled() or (delta := step.result()) is None:
                return
            assert isinstance(delta, OutputDelta)
            yield delta
    finally:
        await cancel_tasks(abort)
