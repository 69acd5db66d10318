"""Requests that are no protocol buffers."""

from __future__ import annotations

import grpc
import pytest

from tests.fakes.gateway_app import Site
from tests.fakes.grpc_site import channel, refusal

GARBAGE = b"\xff\xff garbage"


def test_what_is_no_protocol_buffer_is_an_invalid_argument(
    shared_site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    engine = "/vllm.grpc.engine.VllmEngine"
    reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"

    async def main() -> None:
        async with channel(shared_site) as opened:
            for call in (
                opened.unary_unary(f"{engine}/Embed")(GARBAGE),
                opened.unary_stream(f"{engine}/Generate")(GARBAGE),
                opened.stream_stream(reflection)(iter([GARBAGE])),
            ):
                error = await refusal(call)
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert "not a protocol buffer" in (error.details() or "")
            unknown = await refusal(opened.unary_unary(f"{engine}/Unknown")(GARBAGE))
            assert unknown.code() is grpc.StatusCode.UNIMPLEMENTED

    shared_site.run(main)
    assert not [record for record in caplog.records if record.exc_info]
