"""The port and the end of the gRPC server."""

from __future__ import annotations

import asyncio
import socket

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineStub

from baton.errors import SettingsError
from baton_gateway.access.api_keys import ApiKeys
from baton_gateway.access.rate_limits import RateLimiter
from baton_gateway.config import Config
from baton_gateway.grpc.server import GrpcServer
from tests.fakes.gateway_app import Site
from tests.fakes.grpc_site import channel


async def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SettingsError, match="--grpc-port"):
            GrpcServer(Config(grpc_port=port))


def test_services_can_be_listed(shared_site: Site) -> None:
    async def main() -> None:
        async with channel(shared_site) as opened:
            asked = reflection_pb2.ServerReflectionRequest(list_services="")
            call = ServerReflectionStub(opened).ServerReflectionInfo(iter([asked]))
            listed = (await call.read()).list_services_response.service
            assert "vllm.grpc.engine.VllmEngine" in {one.name for one in listed}

    shared_site.run(main)


def test_the_end_lets_a_running_call_finish(own_site: Site) -> None:
    own_site.engine.scheduler.pace = 0.02
    asked = pb.GenerateRequest(text="hi", sampling_params=pb.SamplingParams(max_tokens=9))

    async def main() -> None:
        server = GrpcServer(own_site.config)
        await server.start(own_site.app, ApiKeys(own_site.config), RateLimiter())
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as opened:
            reading = asyncio.ensure_future(VllmEngineStub(opened).Generate(asked).read())
            async with asyncio.timeout(60):
                while not own_site.engine.scheduler.submits:
                    await asyncio.sleep(0.01)
            await server.close()
            assert len((await reading).complete.output_ids) == 9

    own_site.run(main)
