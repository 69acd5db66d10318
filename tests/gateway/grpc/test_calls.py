"""Keys, rights and errors of calls."""

from __future__ import annotations

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineStub

from baton_gateway.grpc.calls import _host
from tests.fakes.gateway_app import Site, site
from tests.fakes.grpc_site import channel, refusal

PROMPT = pb.GenerateRequest(text="hi", sampling_params=pb.SamplingParams(max_tokens=2))


@pytest.mark.row("F18.22")
def test_keys_are_those_of_http() -> None:
    with site(api_key="client", admin_api_key="operator", requests_per_minute=2) as here:

        async def main() -> None:
            async with channel(here) as opened:
                stub = VllmEngineStub(opened)
                client = (("authorization", "Bearer client"),)
                error = await refusal(stub.Generate(PROMPT))
                assert error.code() == grpc.StatusCode.UNAUTHENTICATED
                error = await refusal(
                    stub.FlushCache(common_pb2.FlushCacheRequest(), metadata=client)
                )
                assert error.code() == grpc.StatusCode.PERMISSION_DENIED
                assert [one async for one in stub.Generate(PROMPT, metadata=client)]
                assert [one async for one in stub.Generate(PROMPT, metadata=client)]
                error = await refusal(stub.Generate(PROMPT, metadata=client))
                assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                for _ in range(3):  # What routers ask again and again is no request of the key.
                    await stub.GetModelInfo(pb.GetModelInfoRequest(), metadata=client)
                await stub.Abort(pb.AbortRequest(request_ids=["x"]), metadata=client)
                facts = dict(error.trailing_metadata())
                assert facts["error-code"] == "rate_limit_exceeded" and int(facts["retry-after"])
                operator = (("authorization", "Bearer operator"),)
                flushed = await stub.FlushCache(common_pb2.FlushCacheRequest(), metadata=operator)
                assert flushed.success

        here.run(main)


@pytest.mark.row("F18.22")
def test_errors_have_a_status_a_sentence_and_their_field(own_site: Site) -> None:
    async def main() -> None:
        async with channel(own_site) as opened:
            stub = VllmEngineStub(opened)
            bad = pb.GenerateRequest(text="a", sampling_params=pb.SamplingParams(top_p=3))
            error = await refusal(stub.Generate(bad))
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and "top_p" in error.details()
            assert dict(error.trailing_metadata())["error-param"] == "top_p"
            assert dict(await stub.Generate(PROMPT).initial_metadata())["x-request-id"]
            own_site.engine.scheduler.silent = True
            own_site.engine.status.draining = True
            error = await refusal(stub.Generate(PROMPT))
            assert error.code() == grpc.StatusCode.UNAVAILABLE

    own_site.run(main)
    text = own_site.engine.exported_metrics().decode()
    assert 'route="/vllm.grpc.engine.VllmEngine/Generate",status="400"' in text


def test_peers_are_addresses() -> None:
    assert _host("ipv4:127.0.0.1:50000") == "127.0.0.1"
    assert _host("ipv6:%5B::1%5D:50000") == "::1"
    assert _host("unix:/run/socket") == ""
