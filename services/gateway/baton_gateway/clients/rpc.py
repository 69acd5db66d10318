"""RPC to stateless services: matched by id, and retried on another server after a disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

from baton.errors import BatonError, InvalidRequest, ServerFault, Unavailable
from baton.protocol import Envelope, RequestError
from baton.protocol.base import RpcReply, RpcRequest
from baton_gateway.clients.connection import Connection, Pool, wait_until

_TRIES = 2
"""Attempts per call: a call is retried once when its server is lost."""

A = TypeVar("A", bound=RpcReply)


class _Lost(Exception):
    """The server was lost before it replied."""


class RpcClient(Generic[A]):
    """RPC client over a pool. The pool's listener must call `receive` and `lost`."""

    def __init__(self, pool: Pool, timeout: float, service: str) -> None:
        """`service`: its name in error messages, in the singular. `timeout`: seconds to wait for
        a server."""
        self._pool, self._timeout, self._service = pool, timeout, service
        self._ids = count(1)
        self._pending: dict[int, tuple[Connection, asyncio.Future[A | RequestError]]] = {}

    async def call(self, build: Callable[[int], RpcRequest], trace: str = "", model: str = "") -> A:
        """Send the message that `build` makes from a call id to a server of `model`, or any if that
        is empty, and return the reply.

        Raises the `BatonError` of an error reply, or `Unavailable` when no server replies.
        """
        for _ in range(_TRIES):
            try:
                answer = await self._ask_once(build(next(self._ids) & 0xFFFFFFFF), trace, model)
            except _Lost:
                continue
            if isinstance(answer, RequestError):
                raise _refusal(answer)
            return answer
        raise Unavailable(
            f"The {self._service}s are restarting. Try again in a moment.", retry_after=1
        )

    def receive(self, message: A | RequestError) -> None:
        """Complete the call that this reply belongs to; ignored after a cancellation."""
        _, future = self._pending.get(message.id, (None, None))
        if future is not None and not future.done():
            future.set_result(message)

    def lost(self, connection: Connection) -> None:
        """Retry the calls pending on this connection."""
        for home, future in self._pending.values():
            if home is connection and not future.done():
                future.set_exception(_Lost())

    async def _ask_once(self, request: RpcRequest, trace: str, model: str) -> A | RequestError:
        await wait_until(lambda: bool(self._pool.ready(model)), self._timeout)
        connection = self._pool.pick(model)
        if connection is None:
            raise Unavailable(
                f"No {self._service} is connected. Try again in a moment.", retry_after=1
            )
        future: asyncio.Future[A | RequestError] = asyncio.get_running_loop().create_future()
        self._pending[request.id] = (connection, future)
        try:
            if not await connection.post(request, Envelope(trace=trace) if trace else None):
                raise _Lost
            return await future
        finally:
            del self._pending[request.id]


def _refusal(answer: RequestError) -> BatonError:
    if answer.status == Unavailable.status:
        return Unavailable(answer.message, code=answer.code, retry_after=1)
    if answer.status >= 500:
        return ServerFault(answer.message, code=answer.code, status=answer.status)
    return InvalidRequest(
        answer.message, code=answer.code, param=answer.param, status=answer.status
    )
