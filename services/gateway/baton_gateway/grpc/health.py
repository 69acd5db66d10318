"""The standard health service, `grpc.health.v1.Health`, for probes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
from grpc.aio import ServicerContext as Context
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton_gateway.gateway_status import GatewayStatus

SERVICE = "grpc.health.v1.Health"
_LOOK_SECONDS = 1.0


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Reports whether requests are served, for the server ("") and each of its services."""

    def __init__(self, status: GatewayStatus, services: tuple[str, ...]) -> None:
        self._status, self._services = status, {"", *services}

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        """Report whether a service is serving; an unknown one is not found."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"Unknown service '{request.service}'.")
        return self._status_of(request.service)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Report the status now and whenever it changes."""
        last = None
        while True:
            status = self._status_of(request.service)
            if status != last:
                yield status
            last = status
            await asyncio.sleep(_LOOK_SECONDS)

    def _status_of(self, service: str) -> health_pb2.HealthCheckResponse:
        states = health_pb2.HealthCheckResponse
        if service not in self._services:
            return states(status=states.SERVICE_UNKNOWN)
        healthy = not self._status.unhealthy_reasons()
        return states(status=states.SERVING if healthy else states.NOT_SERVING)
