"""The gRPC server of a gateway."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from smg_grpc_proto.generated import vllm_engine_pb2_grpc
from starlette.applications import Starlette

from baton.errors import SettingsError
from baton.logs import logger
from baton_gateway.access.api_keys import ApiKeys
from baton_gateway.access.rate_limits import RateLimiter
from baton_gateway.config import Config
from baton_gateway.engine import Engine
from baton_gateway.grpc import health, servicer
from baton_gateway.grpc.calls import Calls
from baton_gateway.grpc.request_parser import RequestParser

log = logger(__name__)


class GrpcServer:
    """Listens from its construction inside the event loop; answers from `start` on."""

    def __init__(self, config: Config) -> None:
        """Raises `SettingsError` when the address is unavailable."""
        options = [
            ("grpc.so_reuseport", int(config.shared_port)),
            ("grpc.max_receive_message_length", config.max_body_bytes),
        ]
        self._grace = config.shutdown_timeout
        self._server = grpc.aio.server(interceptors=[RequestParser()], options=options)
        host = f"[{config.host}]" if ":" in config.host else config.host
        try:
            self.port: int = self._server.add_insecure_port(f"{host}:{config.grpc_port}")
        except RuntimeError as error:
            raise SettingsError(
                f"Cannot listen on {host}:{config.grpc_port} for gRPC. Choose another --grpc-port."
            ) from error
        log.info("listening on grpc://%s:%d", host, self.port)

    async def start(self, app: Starlette, keys: ApiKeys, limiter: RateLimiter) -> None:
        """Start answering calls."""
        engine: Engine = app.state.engine
        services = (servicer.SERVICE, health.SERVICE, reflection.SERVICE_NAME)
        answers = servicer.VllmEngine(engine, Calls(app, keys, limiter))
        vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(answers, self._server)
        probes = health.Health(engine.status, services)
        health_pb2_grpc.add_HealthServicer_to_server(probes, self._server)
        reflection.enable_server_reflection(services, self._server)
        await self._server.start()

    async def close(self) -> None:
        """Accept no more calls, and let running ones finish for a while."""
        await self._server.stop(self._grace)
