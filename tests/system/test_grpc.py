"""vLLM's gRPC protocol over every service."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import grpc
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineStub

from baton_ops.bench.server import free_port
from tests.support.served_system import PATIENCE, Served
from tests.support.tiny_models import save_model

TOKENS = 200


@pytest.mark.row("F18.22")
def test_a_stream_outlives_its_worker(tmp_path: Path) -> None:
    port = free_port()
    served = Served(tmp_path, save_model(tmp_path / "model"), "--grpc-port", str(port)).ready()
    try:
        params = {"temperature": 0.8, "seed": 3, "ignore_eos": True, "max_tokens": TOKENS}
        told = served.complete(prompt="relay", return_token_ids=True, **params).json()
        asked = pb.GenerateRequest(
            text="relay", stream=True, sampling_params=pb.SamplingParams(**params)
        )
        found: list[int] = []
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            for response in VllmEngineStub(channel).Generate(asked, timeout=PATIENCE):
                if not found:
                    os.kill(served.pids()["worker"], signal.SIGKILL)
                found += response.chunk.token_ids
        assert found == told["choices"][0]["token_ids"]
    finally:
        served.close()
