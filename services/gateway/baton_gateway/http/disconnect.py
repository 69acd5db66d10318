"""Detects client disconnects and cancels the work for them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientDisconnected(Exception):
    """The client has closed the connection."""


async def wait_disconnect(receive: Receive) -> None:
    """Return when the client disconnects. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel_on_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; on a disconnect, cancel it and raise `ClientDisconnected`."""
    task = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(wait_disconnect(receive))
    try:
        await asyncio.wait((task, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnected
        return task.result()
    finally:
        await cancel_tasks(task, disconnect)


async def cancel_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have cleaned up, ignoring their results and errors."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
