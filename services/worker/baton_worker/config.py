"""Settings of the worker."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from baton.settings import Settings
from baton_worker.distributed.all2all import ALL2ALL
from baton_worker.kv_transfer.registry import Transports
from baton_worker.kv_transfer.vllm_config import Connector
from baton_worker.layers.moe.routers import ROUTERS
from baton_worker.structured_output import GRAMMARS


class Config(Settings, prefix="worker"):
    """Device, precision, memory and batch size."""

    name: str = ""
    """Name in logs and on the fleet page; empty means host name and process id."""
    role: Literal["both", "prefill", "decode"] = "both"
    """Legs of the relay that it runs: prefill workers pass sequences on to decode workers."""
    bind_kv: str = ""
    """Address that serves KV pages to other workers, one for each rank by commas; empty means a
    socket in the run directory."""
    advertise_kv: str = ""
    """Address under which other workers reach it, when it is not the one that is bound."""
    kv_transports: Transports = "nixl,shm,tcp"
    """How keys and values pass between workers, best first, by commas: nixl, shm and tcp. A pair
    uses the first that both have; one that cannot be used here is left out."""
    kv_transfer_config: Connector = ""
    """Role and transport as vLLM takes them: '{"kv_connector": ..., "kv_role": ...}'."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of weights and activations; auto is bfloat16 where the device is fast at it, or all
    of the model runs on kernels that are."""
    kv_cache_dtype: Literal["auto", "fp8", "int8"] = "auto"
    """Keys and values in pages: those of the model's precision, or one byte per number and a scale
    per token and head. Workers that pass sequences on to each other need the same."""
    kv_cache_layout: Literal["auto", "nhd", "hnd"] = "auto"
    """Order of keys and values in a page: token by token, or head by head; auto is hnd on a CPU,
    whose memory reads it faster. Answers are the same, and workers of either kind pass sequences on
    to each other."""
    attention_backend: str = "auto"
    """Of every attention layer: auto, cpu, triton, flash_attn_3, flash_attn, flashinfer,
    flashinfer_mla, grouped, reference or flex, or a name that vLLM or transformers has for one of
    them, such as fa3 or sdpa. auto takes the first that can."""
    block_size: int = Field(default=16, ge=1, le=256)
    """Tokens per KV page."""
    hybrid_kv_cache: bool = True
    """Layers that see a window have pages of their own, and let go of those that no token to come
    can see. Otherwise all layers of a model share theirs, and keep what one of them may see."""
    num_gpu_blocks_override: int = Field(default=0, ge=0)
    """KV pages; 0 measures free memory and takes the share below."""
    gpu_memory_utilization: float = Field(default=0.5, gt=0, le=0.95)
    """Share of free memory that KV pages may take when their number is not given."""
    max_kv_bytes: int = Field(default=4 * 1024**3, ge=0)
    """Upper bound on KV pages in bytes on a CPU; 0 means none."""
    host_cache_bytes: int = Field(default=0, ge=0)
    """Bytes of host memory for KV pages that had to make room and may be wanted again; 0 means
    none. Workers that pass sequences on (`role`) do without it."""
    max_num_seqs: int = Field(default=256, ge=1, le=4096)
    """Most sequences in the batch."""
    max_num_batched_tokens: int = Field(default=0, ge=0)
    """Most new tokens in one step; 0 means 2048 on a GPU and 512 on a CPU, whose cores more would
    not keep busier: it would only let others wait."""
    max_model_len: int = Field(default=0, ge=0)
    """Longest sequence; 0 means what the model was trained for."""
    cuda_graphs: bool = True
    """Replay decode steps on a GPU as captured CUDA graphs, padded to the next size, where every
    kernel of the model can be captured. Off is what vLLM calls enforce_eager."""
    max_cudagraph_capture_size: int = Field(default=256, ge=1, le=4096)
    """Most rows of a decode step that is captured; a larger one runs kernel by kernel."""
    max_seq_len_to_capture: int = Field(default=32768, ge=1)
    """Longest sequence in a step that is captured, in tokens. A graph has memory for partial sums
    of attention over as many."""
    max_replay_rows: int = Field(default=64, ge=0, le=4096)
    """On a CPU: most rows of a step that is replayed, where kernels of our own do all of it. Their
    calls are taken down once and made again without Python in between; 0 means never."""
    grammar_backend: Annotated[str, GRAMMARS] = "llguidance"
    """Engine that makes structured output follow its grammar; gateways need the same. xgrammar is
    an extra."""
    jump_forward: bool = True
    """Run what a grammar forces in one step and not token by token. The tokens are the same."""
    sampling_backend: str = "auto"
    """What chooses tokens: auto, torch, cpu or triton, or a name that TensorRT-LLM has for one of
    them. auto is triton on a GPU where it is installed, cpu (a kernel in C++) elsewhere, and torch
    where that could not be built. The tokens are the same."""
    moe_router: Annotated[str, ROUTERS] = "top_k"
    """How tokens choose their experts; balanced and skewed are for load tests, not for text."""
    moe_backend: str = "auto"
    """What multiplies experts: auto, triton, padded, grouped or loop, or a name that vLLM or
    transformers has for one of them, such as deep_gemm or grouped_mm. auto takes the first that
    can."""
    expert_stats_window: int = Field(default=0, ge=0, le=100_000)
    """Steps over which the use of experts is counted and then logged; 0 does not count."""
    runtime_stats: bool = False
    """Log what steps are made of, how long each kind of layer takes, and what attention planned."""
    runtime_stats_interval: int = Field(default=100, ge=1, le=1_000_000)
    """Steps between two such lines."""
    tensor_parallel_size: int = Field(default=1, ge=1, le=64)
    """Processes that have a part of every weight each, on a GPU each or on this CPU."""
    decode_context_parallel_size: int = Field(default=1, ge=1, le=64)
    """Of these processes, so many neighbours that have the same key heads keep a part of the tokens
    each, in place of all: the cache has room for so many times the tokens."""
    enable_expert_parallel: bool = False
    """Experts are dealt out whole to these processes, or to the workers of the group below, in
    place of a part of each."""
    expert_placement_strategy: Literal["linear", "round_robin"] = "linear"
    """Which of them go together: neighbours, or every so manieth."""
    data_parallel_size: int = Field(default=1, ge=1, le=64)
    """Workers of a group that share the experts and take every step together. `baton serve
    --data-parallel-size` sets this and the next."""
    data_parallel_rank: int = Field(default=0, ge=0)
    """Which of them this is."""
    all2all_backend: Annotated[str, ALL2ALL] = "allgather_reducescatter"
    """How tokens pass between them: allgather_reducescatter or naive."""
    threads: int = Field(default=0, ge=0)
    """CPU threads for tensor work, of all such processes together; 0 means all cores."""
    cxx: str = ""
    """C++ compiler that builds the CPU kernels at first use; empty means any that is found."""
    task: Literal["auto", "generate", "embed", "classify", "score", "reward"] = "auto"
    """What the model is served for; auto is what its checkpoint was made for."""
    pooling_type: Literal["auto", "mean", "cls", "last", "max"] = "auto"
    """Which states of a text make its vector; auto is what the checkpoint asks for."""
    quantization: Literal["none", "int8", "int4"] = "none"
    """Round weights when they are loaded; what a GGUF file has rounded stays as it is."""
