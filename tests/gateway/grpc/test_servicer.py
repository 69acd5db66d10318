"""The methods of `VllmEngine`, beside the HTTP routes that do the same."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineStub

from baton.protocol import StartProfile, StopProfile
from baton_gateway.generation.request import GenerationRequest, PreparedRequest
from tests.fakes.gateway_app import Site, completion
from tests.fakes.gateway_engine import MODEL
from tests.fakes.grpc_site import channel, refusal


def asked(stream: bool, **params: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        request_id="one", text="hi", stream=stream, sampling_params=pb.SamplingParams(**params)
    )


@pytest.mark.row("F18.22")
def test_tokens_are_those_of_completions(shared_site: Site) -> None:
    body = completion(n=2, max_tokens=8, return_token_ids=True, temperature=0)
    expected = [one["token_ids"] for one in shared_site.complete(**body).json()["choices"]]

    async def main() -> None:
        async with channel(shared_site) as opened:
            stub = VllmEngineStub(opened)
            params = {"n": 2, "max_tokens": 8}
            whole = [one.complete async for one in stub.Generate(asked(False, **params))]
            assert [list(one.output_ids) for one in whole] == expected
            assert {one.finish_reason for one in whole} == {"length"}
            found: dict[int, list[int]] = {0: [], 1: []}
            ends = []
            async for one in stub.Generate(asked(True, **params)):
                if one.HasField("chunk"):
                    found[one.chunk.index] += one.chunk.token_ids
                else:
                    ends.append((one.complete.index, one.complete.finish_reason))
            assert list(found.values()) == expected
            assert sorted(ends) == [(0, "length"), (1, "length")]

    shared_site.run(main)


@pytest.mark.row("F18.22")
def test_an_abort_ends_a_request_for_its_reader_and_the_scheduler(own_site: Site) -> None:
    own_site.engine.scheduler.hold = True

    async def main() -> None:
        async with channel(own_site) as opened:
            stub = VllmEngineStub(opened)
            call = stub.Generate(asked(True, n=2))
            reading = asyncio.ensure_future(call.read())
            async with asyncio.timeout(60):
                while not own_site.engine.scheduler.submits:
                    await asyncio.sleep(0.01)
            await stub.Abort(pb.AbortRequest(request_ids=["one", "unknown"]))
            ends = [await reading, await call.read()]
            assert [one.complete.finish_reason for one in ends] == ["abort", "abort"]
            assert await call.read() is grpc.aio.EOF
            async with asyncio.timeout(60):
                while len(own_site.engine.scheduler.aborted) < 2:
                    await asyncio.sleep(0.01)

    own_site.run(main)


@pytest.mark.row("F18.22")
def test_an_abort_counts_before_the_scheduler_has_the_request(
    own_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_site.engine.scheduler.hold = True
    prepare = own_site.engine.prepare

    async def main() -> None:
        entered, aborted = asyncio.Event(), asyncio.Event()

        async def slow(work: GenerationRequest) -> PreparedRequest:
            entered.set()
            await aborted.wait()
            return await prepare(work)

        monkeypatch.setattr(own_site.engine, "prepare", slow)
        async with channel(own_site) as opened, asyncio.timeout(60):
            stub = VllmEngineStub(opened)
            reading = asyncio.ensure_future(stub.Generate(asked(True)).read())
            await entered.wait()
            await stub.Abort(pb.AbortRequest(request_ids=["one"]))
            aborted.set()
            assert (await reading).complete.finish_reason == "abort"

    own_site.run(main)


@pytest.mark.row("F18.22")
def test_a_client_that_leaves_stops_its_request(own_site: Site) -> None:
    own_site.engine.scheduler.hold = True

    async def main() -> None:
        async with channel(own_site) as opened:
            call = VllmEngineStub(opened).Generate(asked(True))
            reading = asyncio.ensure_future(call.read())
            async with asyncio.timeout(60):
                while not own_site.engine.scheduler.submits:
                    await asyncio.sleep(0.01)
                call.cancel()
                while not own_site.engine.scheduler.aborted:
                    await asyncio.sleep(0.01)
            await asyncio.gather(reading, return_exceptions=True)

    own_site.run(main)


@pytest.mark.row("F18.22")
def test_routers_learn_what_is_served(own_site: Site) -> None:
    async def main() -> None:
        async with channel(own_site) as opened:
            stub = VllmEngineStub(opened)
            assert (await stub.GetModelInfo(pb.GetModelInfoRequest())).served_model_name == MODEL
            assert (await stub.HealthCheck(pb.HealthCheckRequest())).healthy
            info = await stub.GetServerInfo(pb.GetServerInfoRequest())
            assert info.server_type == "vllm-grpc" and not info.active_requests
            assert (await stub.GetLoads(pb.GetLoadsRequest())).dp_rank_count == 1
            assert (await stub.StartProfile(common_pb2.StartProfileRequest())).success
            assert (await stub.StopProfile(common_pb2.StopProfileRequest())).success
            given = common_pb2.StartProfileRequest(num_steps=3)
            assert "--profiler-config" in (await refusal(stub.StartProfile(given))).details()
            vector = pb.EmbedRequest(tokenized=pb.TokenizedInput(input_ids=[1]))
            assert MODEL in (await refusal(stub.Embed(vector))).details()
            for call in (
                stub.GetTokenizer(common_pb2.GetTokenizerRequest()),
                stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest()),
            ):
                assert (await refusal(call)).code() == grpc.StatusCode.UNIMPLEMENTED

    own_site.run(main)
    assert own_site.engine.scheduler.actions == [StartProfile(), StopProfile()]
