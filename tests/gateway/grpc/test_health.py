"""The standard health service."""

from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from baton_gateway.grpc import servicer
from tests.fakes.gateway_app import Site
from tests.fakes.grpc_site import channel, refusal

State = health_pb2.HealthCheckResponse


@pytest.mark.row("F18.22")
def test_probes_see_what_health_says(own_site: Site) -> None:
    async def main() -> None:
        async with channel(own_site) as opened:
            stub = HealthStub(opened)
            ours = health_pb2.HealthCheckRequest(service=servicer.SERVICE)
            assert (await stub.Check(ours)).status == State.SERVING
            strange = health_pb2.HealthCheckRequest(service="strange")
            assert (await refusal(stub.Check(strange))).code() == grpc.StatusCode.NOT_FOUND
            watch = stub.Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == State.SERVING
            own_site.engine.status.draining = True
            assert (await watch.read()).status == State.NOT_SERVING
            watch.cancel()

    own_site.run(main)
