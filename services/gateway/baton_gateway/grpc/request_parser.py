"""The parser of requests of gRPC calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from grpc.aio import ServicerContext as Context

Handler: TypeAlias = Any
"""A `grpc.RpcMethodHandler`; its types name none of its fields."""


class RequestParser(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Parses requests in place of grpcio, which answers UNKNOWN to one that is no protocol buffer
    and logs a traceback."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Give the handler of a call requests that are parsed, or end the call."""
        handler = await continuation(handler_call_details)
        if handler is None:  # An unknown method.
            return None
        kind = ("unary", "stream")
        name = f"{kind[handler.request_streaming]}_{kind[handler.response_streaming]}"
        wrap = {"unary_unary": _unary, "unary_stream": _streaming, "stream_stream": _streams}[name]
        run = wrap(getattr(handler, name), handler.request_deserializer)
        return handler._replace(request_deserializer=None, **{name: run})


def _unary(run: Any, parse: Any) -> Any:
    async def parsed(request: bytes, context: Context) -> Any:
        return await run(await _message(request, parse, context), context)

    return parsed


def _streaming(run: Any, parse: Any) -> Any:
    async def parsed(request: bytes, context: Context) -> AsyncIterator[Any]:
        async for response in run(await _message(request, parse, context), context):
            yield response

    return parsed


def _streams(run: Any, parse: Any) -> Any:
    async def messages(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
        async for request in requests:
            yield await _message(request, parse, context)

    async def parsed(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
        async for response in run(messages(requests, context), context):
            yield response

    return parsed


async def _message(request: bytes, parse: Any, context: Context) -> Any:
    try:
        return parse(request)
    except DecodeError:
        why = "The request is not a protocol buffer of this method."
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
