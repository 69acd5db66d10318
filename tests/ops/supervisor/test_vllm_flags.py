"""Each flag of vLLM becomes a variable of a service, holds already, or is refused by name."""

from __future__ import annotations

import re

import pytest

from baton.errors import SettingsError
from baton_ops.supervisor.options import Serve, serve_config, variables
from baton_ops.supervisor.vllm_flags import ROWS

CONFIG = serve_config()


def load(*argv: str) -> Serve:
    return CONFIG.load(argv)


@pytest.mark.parametrize(
    ("flags", "variable", "value"),
    [
        ("-tp 2", "WORKER_TENSOR_PARALLEL_SIZE", "2"),
        ("-dcp 2", "WORKER_DECODE_CONTEXT_PARALLEL_SIZE", "2"),
        ("--swap-space 4", "WORKER_HOST_CACHE_BYTES", str(4 * 1024**3)),
        ("--enforce-eager", "WORKER_CUDA_GRAPHS", "False"),
        ("--no-enable-prefix-caching", "SCHEDULER_ENABLE_PREFIX_CACHING", "False"),
        ("--max_num_seqs=8", "WORKER_MAX_NUM_SEQS", "8"),
        ("--max-num-batched-tokens 64", "SCHEDULER_MAX_NUM_BATCHED_TOKENS", "64"),
        ("--max-num-batched-tokens 64", "WORKER_MAX_NUM_BATCHED_TOKENS", "64"),
        ("--quantization awq", "WORKER_QUANTIZATION", "none"),
        ("--tool-call-parser hermes", "TOKENIZER_TOOL_CALL_PARSER", "hermes"),
        ("--reasoning-parser qwen3", "TOKENIZER_REASONING_PARSER", "qwen3"),
        ("-q gptqmodel", "WORKER_QUANTIZATION", "none"),
        ("-q int8", "WORKER_QUANTIZATION", "int8"),
        ("--load-format safetensors", "WORKER_LOAD_FORMAT", "auto"),
        ("--dtype half", "WORKER_DTYPE", "float16"),
        ("--kv-cache-dtype fp8_e4m3", "WORKER_KV_CACHE_DTYPE", "fp8"),
        ("--kv-cache-dtype fp8", "WORKER_KV_CACHE_DTYPE", "fp8"),
        ("--model a/b --api-key x y", "GATEWAY_API_KEY", "x,y"),
        ("--model a/b --revision v2", "MODEL", "a/b@v2"),
        ("--disable-log-stats", "GATEWAY_METRICS", "False"),
        ("--no-async-scheduling", "WORKER_ASYNC_SCHEDULING", "False"),
        ("--guided-decoding-backend llguidance", "GATEWAY_GRAMMAR_BACKEND", "llguidance"),
    ],
)
def test_a_flag_becomes_a_variable(flags: str, variable: str, value: str) -> None:
    assert variables(load(*flags.split()))[f"BATON_{variable}"] == value


HOLDING = [(row.flag, value) for row in ROWS for value in row.holds]


def test_what_holds_already_says_nothing() -> None:
    for flag, value in HOLDING:
        assert variables(load(flag, *([value] if value else []))) == {}


def test_what_has_no_meaning_is_refused_by_name() -> None:
    for row in [r for r in ROWS if not r.ours and r.holds != ("",)]:
        with pytest.raises(SettingsError, match=re.escape(row.flag)):
            load(row.flag, *([] if row.switch else ["other"]))


@pytest.mark.row("F14.15", refuses=True)
def test_ray_and_grpc_are_refused_with_what_to_use() -> None:
    for flags, instead in (
        ("--distributed-executor-backend ray", "name the scheduler with --fleet-address"),
        ("--data-parallel-backend ray", "name the scheduler with --fleet-address"),
        ("--grpc", "--grpc-port PORT"),
    ):
        with pytest.raises(SettingsError) as error:
            load(*flags.split())
        assert error.value.message.startswith(flags) and instead in error.value.message


def test_the_negation_of_what_is_refused_says_nothing() -> None:
    assert variables(load("--no-fully-sharded-loras", "--no-enable-lora-bias")) == {}
    assert load("-asc", "2").gateways == 2


def test_a_revision_belongs_to_a_model_of_a_hub() -> None:
    with pytest.raises(SettingsError, match="org/name"):
        load("./folder", "--revision", "v2")


def test_a_method_of_checkpoints_that_is_refused_says_what_to_use() -> None:
    with pytest.raises(SettingsError, match=r"'hqq' is not supported\. Use the unquant"):
        load("-q", "hqq")


@pytest.mark.row("F11.01")
def test_adapters_are_named_as_vllm_names_them() -> None:
    modules = ("--lora-modules", "a=/x", "b=/y", "--max-loras", "2")
    said = variables(load("./model", "--enable-lora", *modules))
    assert said["BATON_WORKER_ENABLE_LORA"] == "True"
    assert said["BATON_WORKER_LORA_MODULES"] == "a=/x,b=/y"
    assert said["BATON_WORKER_MAX_LORAS"] == "2"
