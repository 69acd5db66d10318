"""Settings of the worker."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator

from baton.protocol import Role
from baton.settings import Settings, setting
from baton_worker.distributed.all2all import ALL2ALL
from baton_worker.distributed.eplb.config import EplbJson
from baton_worker.kv_transfer.registry import Transports
from baton_worker.kv_transfer.vllm_config import Connector
from baton_worker.layers.moe.routers import ROUTERS
from baton_worker.platform.profiler_config import ProfilerSettings
from baton_worker.quantization.methods import ALIASES, METHODS, REFUSED, ROUNDS
from baton_worker.speculative.config import SpeculativeJson
from baton_worker.structured_output import GRAMMARS

Quantize: TypeAlias = Literal["none", "int8", "int4", "fp8", "mxfp4", "nf4", "experts_int8"]
"""Formats to which weights are rounded while they are loaded."""
MAX_LORA_RANK = 512
"""Mirrored in kernels/lora/products.py."""
_VALUES = {
    "half": "float16",
    "float": "float32",
    "fp8_e4m3": "fp8",
    "safetensors": "auto",
    "gguf": "auto",
}
"""Values of settings by the names that vLLM has for them."""


def _named_by_vllm(value: object) -> object:
    return _VALUES.get(value, value) if isinstance(value, str) else value


def _of_checkpoint(value: object) -> object:
    """A method of checkpoints rounds nothing at load: the loader finds it in the checkpoint. A
    refused one raises before anything is loaded."""
    if value in REFUSED:
        raise ValueError(f"'{value}' is not supported. {REFUSED[str(value)]}")
    if value in ROUNDS:
        return value
    return "none" if value in METHODS or value in ALIASES else value


def _partition(value: object) -> object:
    """Numbers by commas, which vLLM has in VLLM_PP_LAYER_PARTITION."""
    parts = value.split(",") if isinstance(value, str) and value else ()
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise ValueError("Give the number of layers of each stage, by commas, such as 16,16.")
    return value


class Config(Settings, prefix="worker"):
    """Device, precision, memory and batch size."""

    name: str = setting("", "parallelism", advanced=True)
    """Name in logs and on the fleet page; empty means host name and process id."""
    role: Role = setting("both", "parallelism", advanced=True)
    """Work of this worker: prefill workers pass sequences on to decode workers; encode workers hold
    only the vision encoder and pass the embeddings of images on to prefill workers."""
    bind_kv: str = setting("", "network", advanced=True)
    """Address that serves KV pages to other workers, one for each rank by commas; empty means a
    socket in the run directory."""
    advertise_kv: str = setting("", "network", advanced=True)
    """Address at which other workers reach `bind_kv`, if it differs from the bound one."""
    kv_transports: Transports = setting("cuda_ipc,nixl,shm,tcp", "parallelism")
    """Transports of KV between workers, best first, separated by commas: cuda_ipc (GPU memory on
    one host), nixl_gpu (GPU memory over NIXL), nixl, shm and tcp. A pair of workers uses the first
    that both have; a transport that this machine lacks is skipped."""
    kv_transfer_config: Connector = setting("", "parallelism")
    """Role and transport of KV in vLLM's format: '{"kv_connector": ..., "kv_role": ...}'."""
    profiler_config: ProfilerSettings = setting("", "observability", advanced=True)
    """Directory of the torch.profiler traces that /start_profile writes, in vLLM's format:
    '{"profiler": "torch", "torch_profiler_dir": "/traces"}'. Of several ranks, only the first is
    traced."""
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "model")
    """Where the model runs."""
    gpu: str = setting("", "parallelism", advanced=True)
    """GPU numbers of this worker, one for each rank, separated by commas; empty counts from 0.
    `baton serve` gives each worker its own GPUs."""
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], BeforeValidator(_named_by_vllm)
    ] = setting("auto", "model")
    """Precision of weights and activations; auto is bfloat16 if the device or the kernels that run
    the whole model are fast at it, and float32 otherwise."""
    load_format: Annotated[Literal["auto", "dummy"], BeforeValidator(_named_by_vllm)] = setting(
        "auto", "model", advanced=True
    )
    """Source of the weights: auto detects the format of the checkpoint; dummy makes random weights
    for a folder with config.json and a tokenizer, to measure models of any size."""
    kv_cache_dtype: Annotated[Literal["auto", "fp8", "int8"], BeforeValidator(_named_by_vllm)] = (
        setting("auto", "memory")
    )
    """Format of KV pages: auto is the model's precision; fp8 and int8 take one byte per number and
    a scale per token and head. Workers that transfer KV to each other need the same format."""
    kv_cache_layout: Literal["auto", "nhd", "hnd"] = setting("auto", "memory", advanced=True)
    """Order of KV in a page: nhd token by token, hnd head by head; auto is hnd on a CPU, whose
    memory reads it faster, and nhd on a GPU. It changes no answer, and workers of both layouts
    transfer KV to each other."""
    attention_backend: str = setting("auto", "kernels")
    """Kernels of every attention layer: auto, cpu, triton, flash_attn_3, flash_attn, flashinfer,
    flashinfer_mla, grouped, reference, flex, or their names in vLLM or transformers, such as fa3 or
    sdpa. auto takes the first that supports the model and the device; on a GPU the fastest of
    them."""
    block_size: int = setting(16, "memory", ge=1, le=256)
    """Tokens per KV page."""
    hybrid_kv_cache: bool = setting(True, "memory", advanced=True)
    """Give layers with a sliding window their own page groups, whose pages are freed once they
    leave the window. Otherwise all layers share pages, which are kept as long as any layer needs
    them."""
    num_gpu_blocks_override: int = setting(0, "memory", advanced=True, ge=0)
    """Number of KV pages; 0 measures the free memory and takes --gpu-memory-utilization of it."""
    gpu_memory_utilization: float = setting(0.0, "memory", ge=0, le=0.95)
    """Share of the memory left beside the weights that KV pages take, if --num-gpu-blocks-override
    does not give their number; 0 means 0.9 of a GPU and 0.5 of a host, divided by the workers on
    it. On a GPU the bytes of the largest step and of the graphs are measured first and
    subtracted."""
    max_kv_bytes: int = setting(4 * 1024**3, "memory", ge=0)
    """Upper bound on KV pages in bytes on a CPU; 0 means none."""
    share_weights: bool = setting(True, "memory", advanced=True)
    """Under `baton serve`: on a CPU, packed weights are in memory that all present and later
    workers of this host share (Linux 6.1 or later); on a GPU, float weights are in the memory of a
    keeper process, by CUDA IPC."""
    encoder_cache_bytes: int = setting(256 * 1024**2, "memory", ge=0)
    """Bytes for the embeddings of earlier images, so that a repeated image is not encoded again."""
    keep_kv_cache: bool = setting(True, "memory", advanced=True)
    """Under `baton serve`: KV pages are in memory that outlives a killed worker, and the next
    worker uses the complete ones. On a CPU, and on a GPU by CUDA IPC."""
    host_cache_bytes: int = setting(0, "memory", ge=0, le=2**50)
    """Bytes of host memory for KV pages that were evicted from the device and may be needed again;
    0 means none. Prefill and decode workers have no host cache."""
    max_num_seqs: int = setting(256, "batching", ge=1, le=4096)
    """Maximum sequences in the batch."""
    max_num_batched_tokens: int = setting(0, "batching", shared=True, ge=0)
    """Maximum new tokens in one step; 0 means 2048 on a GPU and 512 on a CPU, where larger steps
    are no faster and other requests wait for them."""
    max_model_len: int = setting(0, "model", ge=0)
    """Longest sequence; 0 means what the model was trained for."""
    cuda_graphs: bool = setting(True, "kernels")
    """On a GPU, replay decode steps as CUDA graphs, padded to the next captured size, if every
    kernel of the model can be captured. --no-cuda-graphs is vLLM's --enforce-eager."""
    exact: bool = setting(False, "kernels")
    """On a GPU, make the numbers of a token depend only on its own sequence, so that a stream that
    continues on another worker has the same tokens: every product has 128 rows, and attention adds
    its parts in one fixed order. It is slower, most of all for prompts. Models, kernels and rank
    counts without this property are refused. A CPU always has it."""
    async_scheduling: bool = setting(True, "kernels")
    """On a GPU, launch a step before the result of the previous one has been read: sampled tokens
    stay on the device and are the inputs of the next step. A sequence that ends costs one extra
    row, whose result is dropped. Rows whose sampling needs the host (grammars, penalties,
    log-probabilities, speculation) make their steps wait."""
    max_cudagraph_capture_size: int = setting(256, "kernels", advanced=True, ge=1, le=4096)
    """Maximum rows of a captured decode step; larger steps run kernel by kernel."""
    max_seq_len_to_capture: int = setting(0, "kernels", advanced=True, ge=0)
    """On a GPU: tokens of the longest sequence in a captured step; 0 means --max-model-len. With
    --exact, graphs reserve memory for one partial sum of attention per 512 tokens of it; without,
    its size costs no memory."""
    max_replay_rows: int = setting(64, "kernels", advanced=True, ge=0, le=4096)
    """On a CPU: maximum rows of a step that is replayed, if kernels of Baton compute all of it.
    Their calls are recorded once and repeated without Python; 0 means never."""
    grammar_backend: Annotated[str, GRAMMARS] = setting(
        "llguidance", "structured output", shared=True
    )
    """Engine that makes structured output follow its grammar; gateways need the same. xgrammar is
    an extra."""
    speculative_config: SpeculativeJson = setting("", "batching")
    """Draft tokens and verify them; the tokens are the same as without. In vLLM's format:
    '{"method": "ngram", "num_speculative_tokens": 5}'; empty means none."""
    jump_forward: bool = setting(True, "structured output", advanced=True)
    """Run the tokens that a grammar forces in one step, not one by one. The tokens are the same."""
    sampling_backend: str = setting("auto", "kernels", advanced=True)
    """Sampler: auto, torch, cpu, triton, or their names in TensorRT-LLM. auto is triton on a GPU if
    it is installed, otherwise cpu (a C++ kernel), and torch if that cannot be built. The tokens are
    the same."""
    moe_router: Annotated[str, ROUTERS] = setting("top_k", "kernels", advanced=True)
    """Routing of tokens to experts; top_k is the model's own, balanced and skewed are for load
    tests."""
    moe_backend: str = setting("auto", "kernels")
    """Kernels of experts: auto, triton, padded, grouped, loop, or their names in vLLM or
    transformers, such as deep_gemm or grouped_mm. auto takes the first that supports the model and
    the device."""
    expert_stats_window: int = setting(0, "observability", advanced=True, ge=0, le=100_000)
    """Steps over which the use of experts is counted before it is logged; 0 does not count."""
    runtime_stats: bool = setting(False, "observability", advanced=True)
    """Log the rows of steps, the time of each kind of layer, and the plan of attention."""
    runtime_stats_interval: int = setting(100, "observability", advanced=True, ge=1, le=1_000_000)
    """Steps between two lines of --runtime-stats."""
    tensor_parallel_size: int = setting(1, "parallelism", ge=1, le=64)
    """Processes (ranks) that each hold a part of every weight, each on its own GPU or all on the
    CPU."""
    pipeline_parallel_size: int = setting(1, "parallelism", ge=1, le=64)
    """Pipeline stages of --tensor-parallel-size processes each. Each has consecutive layers of the
    model and sends the hidden states of a step to the next stage."""
    pp_layer_partition: Annotated[str, BeforeValidator(_partition)] = setting(
        "", "parallelism", advanced=True
    )
    """Number of layers of each pipeline stage, separated by commas; empty divides them equally, and
    gives each stage before the last one more if a remainder is left."""
    decode_context_parallel_size: int = setting(1, "parallelism", ge=1, le=64)
    """Neighbouring tensor-parallel ranks with the same KV heads that divide the tokens of each
    sequence between them: the KV cache has room for this many times the tokens."""
    enable_expert_parallel: bool = setting(False, "parallelism")
    """Divide whole experts among the tensor-parallel ranks, or among the workers of a data-parallel
    group, instead of a part of each expert."""
    expert_placement_strategy: Literal["linear", "round_robin"] = setting(
        "linear", "parallelism", advanced=True
    )
    """Experts of one rank: consecutive ones (linear), or every n-th of n ranks (round_robin)."""
    enable_eplb: bool = setting(False, "parallelism")
    """Balance the experts of a data-parallel group with --enable-expert-parallel: they move between
    its workers while it runs, and busy experts have replicas."""
    eplb_config: EplbJson = setting("", "parallelism", advanced=True)
    """Parameters of --enable-eplb in vLLM's format; the defaults are '{"window_size": 1000,
    "step_interval": 3000, "num_redundant_experts": 0}'."""
    data_parallel_size: int = setting(1, "parallelism", ge=1, le=64)
    """Workers of a group that share the experts and take every step together. `baton serve
    --data-parallel-size` sets this and `data_parallel_rank`."""
    data_parallel_rank: int = setting(0, "parallelism", advanced=True, ge=0)
    """Rank of this worker in its data-parallel group."""
    all2all_backend: Annotated[str, ALL2ALL] = setting("allgather_reducescatter", "parallelism")
    """Exchange of tokens between the workers of a data-parallel group: allgather_reducescatter or
    naive."""
    threads: int = setting(0, "parallelism", ge=0, le=4096)
    """CPU threads for tensor work, of all ranks of a worker together; 0 means all cores."""
    cxx: str = setting("", "kernels", advanced=True)
    """C++ compiler that builds the CPU kernels at first use; empty means any that is found."""
    enable_lora: bool = setting(False, "model")
    """Serve LoRA adapters beside the model, each under a name of its own."""
    lora_modules: str = setting("", "model")
    """Adapters as name=path of their PEFT folders, separated by commas, or as vLLM's JSON."""
    max_loras: int = setting(8, "batching", ge=1, le=4096)
    """Maximum different adapters of the sequences of one step."""
    max_lora_rank: int = setting(64, "model", ge=1, le=MAX_LORA_RANK)
    """Maximum rank of an adapter."""
    max_cpu_loras: int = setting(64, "memory", ge=1, le=65536)
    """Maximum adapters in the memory of the host."""
    task: Literal["auto", "generate", "embed", "classify", "score", "reward"] = setting(
        "auto", "model"
    )
    """The task that the model is served for; auto is that of its checkpoint."""
    pooling_type: Literal["auto", "mean", "cls", "last", "max"] = setting("auto", "model")
    """How hidden states become one vector; auto is the checkpoint's own pooling."""
    quantization: Annotated[Quantize, BeforeValidator(_of_checkpoint)] = setting("none", "model")
    """Format to which weights are rounded while they are loaded; experts_int8 rounds only those of
    experts. Weights that the checkpoint has quantised stay as they are."""
    int8_activations: bool = setting(False, "model")
    """On a CPU, round the inputs of a w8a8 checkpoint to 8 bits as its config says, and multiply
    integers; without, inputs stay floats, which is closer to the unquantised model."""

    @property
    def num_ranks(self) -> int:
        """Processes of this worker."""
        return self.pipeline_parallel_size * self.tensor_parallel_size
