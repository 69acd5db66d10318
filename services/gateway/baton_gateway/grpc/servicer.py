"""The `vllm.grpc.engine.VllmEngine` service.

https://github.com/smg-project/smg, package `smg-grpc-proto`
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import aclosing

from grpc.aio import ServicerContext as Context
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2_grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from starlette.requests import Request

from baton import protocol
from baton.errors import InvalidRequest
from baton_gateway.api.model_access import permitted
from baton_gateway.api.options import check_choices
from baton_gateway.api.pooling_common import begin
from baton_gateway.engine import Engine
from baton_gateway.generation.choice import Choice
from baton_gateway.generation.output import OutputDelta, Started
from baton_gateway.generation.request import GenerationRequest
from baton_gateway.grpc import model_facts
from baton_gateway.grpc.aborts import Aborts, deltas_until
from baton_gateway.grpc.calls import Calls
from baton_gateway.grpc.requests import completion, generation, logprobs
from baton_gateway.grpc.responses import ResponseWriter
from baton_gateway.http.body import build
from baton_gateway.http.middleware import tenant_of
from baton_gateway.schemas.completions import CompletionRequest
from baton_gateway.schemas.pooling import EmbeddingRequest
from baton_gateway.schemas.sampling_defaults import with_defaults
from baton_gateway.streaming.head import Head

SERVICE = "vllm.grpc.engine.VllmEngine"


class VllmEngine(vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc]
    """Answers calls with the engine of the gateway."""

    def __init__(self, engine: Engine, calls: Calls) -> None:
        self._engine, self._calls = engine, calls
        self._aborts = Aborts()
        self._started_at, self._last = time.monotonic(), 0.0

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Generate from a prompt: tokens as they arrive, or each choice once it is complete."""
        async with self._calls.admitted(context, _method("Generate"), "/v1/completions") as call:
            self._last = time.time()
            body, work = await self._admit(call, request)
            scored = -1 if body.prompt_logprobs is None else body.prompt_logprobs
            answer = streamed if request.stream else completed
            # An abort may arrive before the scheduler has the request.
            with self._aborts.open(tenant_of(call), request.request_id) as aborted:
                async with aclosing(self._engine.generate(work)) as events:
                    started = await anext(events)
                    assert isinstance(started, Started)
                    writer = ResponseWriter(started, logprobs(request), scored, set(range(body.n)))
                    async for response in answer(writer, deltas_until(events, aborted)):
                        yield response

    async def _admit(
        self, call: Request, request: pb.GenerateRequest
    ) -> tuple[CompletionRequest, GenerationRequest]:
        model_info = await permitted(call, None)
        body = completion(request, model_info.name)
        check_choices(body, 1, self._engine.config)
        body = with_defaults(body, model_info.sampling_defaults)
        return body, generation(call, request, body, Head.of(call, "grpc-", model_info.name))

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        """Return the vector of a tokenised text."""
        async with self._calls.admitted(context, _method("Embed"), "/v1/embeddings") as call:
            model_info = await permitted(call, None)
            prompt = tuple(request.tokenized.input_ids)
            fields = {"model": model_info.name, "input": [list(prompt)]}
            body = build(fields, EmbeddingRequest, strict=True)
            job = await begin(call, body, "embed")
            [vector], usage = await job.run([prompt], "input", job.pooling())
            return pb.EmbedResponse(
                embedding=vector.tolist(),
                prompt_tokens=usage.prompt_tokens,
                embedding_dim=len(vector),
            )

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """Abort requests of the same tenant; unknown ids are ignored."""
        method, path = _method("Abort"), "/v1/completions"
        async with self._calls.admitted(context, method, path, limited=False) as call:
            for request_id in request.request_ids:
                self._aborts.abort(tenant_of(call), request_id)
            return pb.AbortResponse()

    async def HealthCheck(
        self, request: pb.HealthCheckRequest, context: Context
    ) -> pb.HealthCheckResponse:
        """Report whether requests are served."""
        reasons = self._engine.status.unhealthy_reasons()
        return pb.HealthCheckResponse(healthy=not reasons, message="; ".join(reasons) or "ok")

    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: Context
    ) -> pb.GetModelInfoResponse:
        """Describe the model."""
        method, path = _method("GetModelInfo"), "/v1/models"
        async with self._calls.admitted(context, method, path, limited=False) as call:
            return model_facts.model_info(await permitted(call, None))

    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: Context
    ) -> pb.GetServerInfoResponse:
        """Describe this server."""
        method, path = _method("GetServerInfo"), "/v1/models"
        async with self._calls.admitted(context, method, path, limited=False) as call:
            model_info = await permitted(call, None)
            return pb.GetServerInfoResponse(
                active_requests=self._engine.status.num_requests,
                is_paused=model_info.paused,
                last_receive_timestamp=self._last,
                uptime_seconds=time.monotonic() - self._started_at,
                server_type="vllm-grpc",
                data_parallel_size=1,
            )

    async def GetLoads(self, request: pb.GetLoadsRequest, context: Context) -> pb.GetLoadsResponse:
        """Report running and waiting requests of all workers."""
        async with self._calls.admitted(context, _method("GetLoads"), "/fleet", limited=False):
            return model_facts.loads(self._engine.stats)

    async def FlushCache(
        self, request: common_pb2.FlushCacheRequest, context: Context
    ) -> common_pb2.FlushCacheResponse:
        """Drop all cached prefixes that are not in use."""
        path = "/reset_prefix_cache"
        async with self._calls.admitted(context, _method("FlushCache"), path):
            pages = await self._engine.administration.reset_cache()
            return common_pb2.FlushCacheResponse(success=True, message=f"dropped {pages} pages")

    async def StartProfile(
        self, request: common_pb2.StartProfileRequest, context: Context
    ) -> common_pb2.ProfileResponse:
        """Start profiling all workers, as configured by `--profiler-config`."""
        async with self._calls.admitted(context, _method("StartProfile"), "/start_profile") as call:
            if fields := [field.name for field, _ in request.ListFields()]:
                raise InvalidRequest(
                    f"'{fields[0]}' is set by --profiler-config, where the workers start."
                )
            return await self._profile(call, protocol.StartProfile())

    async def StopProfile(
        self, request: common_pb2.StopProfileRequest, context: Context
    ) -> common_pb2.ProfileResponse:
        """Stop profiling; returns once every worker has written its trace."""
        async with self._calls.admitted(context, _method("StopProfile"), "/stop_profile") as call:
            return await self._profile(call, protocol.StopProfile())

    async def _profile(
        self, request: Request, action: protocol.StartProfile | protocol.StopProfile
    ) -> common_pb2.ProfileResponse:
        model_info = await permitted(request, None)
        await self._engine.administration.profile(model_info.model, action)
        return common_pb2.ProfileResponse(success=True)

    async def GetTokenizer(
        self, request: common_pb2.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[common_pb2.GetTokenizerChunk]:
        """Refuse: gateways have no model files."""
        async with self._calls.admitted(context, _method("GetTokenizer"), "/v1/models"):
            raise _absent("Tokenizers are not handed out: give the router the model's folder.")
        yield

    async def SubscribeKvEvents(
        self, request: common_pb2.SubscribeKvEventsRequest, context: Context
    ) -> AsyncIterator[common_pb2.KvEventBatch]:
        """Refuse: the prefix index is in the scheduler."""
        async with self._calls.admitted(context, _method("SubscribeKvEvents"), "/fleet"):
            raise _absent("KV events are not published: the scheduler places by cached prefixes.")
        yield


async def streamed(
    writer: ResponseWriter, deltas: AsyncIterator[OutputDelta]
) -> AsyncIterator[pb.GenerateResponse]:
    """Yield responses as deltas come; choices that were aborted end with that reason."""
    async for delta in deltas:
        for response in writer.streamed(delta):
            yield response
    for index in sorted(writer.open):
        yield writer.complete(index, Choice(), "abort")


async def completed(
    writer: ResponseWriter, deltas: AsyncIterator[OutputDelta]
) -> AsyncIterator[pb.GenerateResponse]:
    """Yield every choice once all are complete, or aborted."""
    choices = {index: Choice() for index in writer.open}
    async for delta in deltas:
        choices[delta.choice].add(delta)
    for index, choice in choices.items():
        yield writer.complete(index, choice, choice.reason or "abort")


def _method(name: str) -> str:
    return f"/{SERVICE}/{name}"


def _absent(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="unsupported_value", status=501)
