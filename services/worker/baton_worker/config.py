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
    """What it runs: prefill workers pass sequences on to decode workers; encode workers have the
    vision encoder only, and pass embeddings of images on to those that prefill."""
    bind_kv: str = setting("", "network", advanced=True)
    """Address that serves KV pages to other workers, one for each rank by commas; empty means a
    socket in the run directory."""
    advertise_kv: str = setting("", "network", advanced=True)
    """Address under which other workers reach it, when it is not the one that is bound."""
    kv_transports: Transports = setting("cuda_ipc,nixl,shm,tcp", "parallelism")
    """How keys and values pass between workers, best first, by commas: cuda_ipc (GPU memory on one
    host), nixl_gpu (GPU memory over NIXL), nixl, shm and tcp. A pair uses the first that both have;
    one that cannot be used here is left out."""
    kv_transfer_config: Connector = setting("", "parallelism")
    """Role and transport as vLLM takes them: '{"kv_connector": ..., "kv_role": ...}'."""
    profiler_config: ProfilerSettings = setting("", "observability", advanced=True)
    """Where /start_profile writes traces of torch.profiler, as vLLM takes it:
    '{"profiler": "torch", "torch_profiler_dir": "/traces"}'. With several ranks, of the first."""
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "model")
    """Where the model runs."""
    gpu: str = setting("", "parallelism", advanced=True)
    """Numbers of its GPUs, one for each rank, by commas; empty means from 0 on, and `baton serve`
    gives each worker GPUs of its own."""
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], BeforeValidator(_named_by_vllm)
    ] = setting("auto", "model")
    """Precision of weights and activations; auto is bfloat16 where the device is fast at it, or all
    of the model runs on kernels that are."""
    load_format: Annotated[Literal["auto", "dummy"], BeforeValidator(_named_by_vllm)] = setting(
        "auto", "model", advanced=True
    )
    """Where weights come from: auto finds the format of the checkpoint; dummy makes random ones for
    a folder with config.json and a tokenizer, to measure models of any size."""
    kv_cache_dtype: Annotated[Literal["auto", "fp8", "int8"], BeforeValidator(_named_by_vllm)] = (
        setting("auto", "memory")
    )
    """Keys and values in pages: those of the model's precision, or one byte per number and a scale
    per token and head. Workers that pass sequences on to each other need the same."""
    kv_cache_layout: Literal["auto", "nhd", "hnd"] = setting("auto", "memory", advanced=True)
    """Order of keys and values in a page: token by token, or head by head; auto is hnd on a CPU,
    whose memory reads it faster. Answers are the same, and workers of either kind pass sequences on
    to each other."""
    attention_backend: str = setting("auto", "kernels")
    """Of every attention layer: auto, cpu, triton, flash_attn_3, flash_attn, flashinfer,
    flashinfer_mla, grouped, reference or flex, or a name that vLLM or transformers has for one of
    them, such as fa3 or sdpa. auto takes the first that can, on a GPU the fastest of those."""
    block_size: int = setting(16, "memory", ge=1, le=256)
    """Tokens per KV page."""
    hybrid_kv_cache: bool = setting(True, "memory", advanced=True)
    """Layers with a sliding window have page groups of their own, and free pages outside of the
    window. Otherwise all layers share pages, which are kept as long as any layer needs them."""
    num_gpu_blocks_override: int = setting(0, "memory", advanced=True, ge=0)
    """KV pages; 0 measures free memory and takes the share below."""
    gpu_memory_utilization: float = setting(0.0, "memory", ge=0, le=0.95)
    """Share of the memory that is free beside the weights that KV pages may take when their number
    is not given; 0 means 0.9 of a GPU and 0.5 of a host, divided by the workers on it. On a GPU the
    largest step and the graphs are measured first, and their bytes taken off."""
    max_kv_bytes: int = setting(4 * 1024**3, "memory", ge=0)
    """Upper bound on KV pages in bytes on a CPU; 0 means none."""
    share_weights: bool = setting(True, "memory", advanced=True)
    """Under `baton serve`: packed weights on a CPU lie in memory that all workers of this host
    share, also with the next ones, which takes Linux 6.1 or later; weights in floats on a GPU lie
    in memory of a process beside the workers, by CUDA IPC."""
    encoder_cache_bytes: int = setting(256 * 1024**2, "memory", ge=0)
    """Bytes for the embeddings of images that were seen before, so that they are not encoded
    again."""
    keep_kv_cache: bool = setting(True, "memory", advanced=True)
    """Under `baton serve`: KV pages are in memory that outlives a killed worker, and the next
    worker uses those that were complete. On a CPU, and on a GPU by CUDA IPC."""
    host_cache_bytes: int = setting(0, "memory", ge=0, le=2**50)
    """Bytes of host memory for KV pages that had to make room and may be wanted again; 0 means
    none. Workers that pass sequences on (`role`) do without it."""
    max_num_seqs: int = setting(256, "batching", ge=1, le=4096)
    """Most sequences in the batch."""
    max_num_batched_tokens: int = setting(0, "batching", shared=True, ge=0)
    """Most new tokens in one step; 0 means 2048 on a GPU and 512 on a CPU, whose cores more would
    not keep busier: it would only let others wait."""
    max_model_len: int = setting(0, "model", ge=0)
    """Longest sequence; 0 means what the model was trained for."""
    cuda_graphs: bool = setting(True, "kernels")
    """Replay decode steps on a GPU as captured CUDA graphs, padded to the next size, where every
    kernel of the model can be captured. Off is what vLLM calls enforce_eager."""
    exact: bool = setting(False, "kernels")
    """On a GPU, the numbers of a token depend on its own sequence alone, so that a stream that
    continues on another worker has the same tokens: every product has 128 rows, and attention adds
    its parts in one order. It costs speed, in prompts most. Models, kernels and numbers of ranks
    for which that does not hold are refused. On a CPU this always holds."""
    async_scheduling: bool = setting(True, "kernels")
    """On a GPU, launch a step before the one before it has been read: sampled tokens stay on the
    device and are the next step's inputs. A sequence that ends has one row more, which gives
    nothing. Rows whose sampling needs the host (grammars, penalties, log-probabilities,
    speculation) make their steps wait."""
    max_cudagraph_capture_size: int = setting(256, "kernels", advanced=True, ge=1, le=4096)
    """Most rows of a decode step that is captured; a larger one runs kernel by kernel."""
    max_seq_len_to_capture: int = setting(0, "kernels", advanced=True, ge=0)
    """On a GPU: longest sequence in a step that is captured, in tokens; 0: as long as any may be.
    With --exact, graphs have memory for a partial sum of attention for each 512 tokens of it;
    otherwise they need none for longer sequences."""
    max_replay_rows: int = setting(64, "kernels", advanced=True, ge=0, le=4096)
    """On a CPU: most rows of a step that is replayed, where kernels of our own do all of it. Their
    calls are taken down once and made again without Python in between; 0 means never."""
    grammar_backend: Annotated[str, GRAMMARS] = setting(
        "llguidance", "structured output", shared=True
    )
    """Engine that makes structured output follow its grammar; gateways need the same. xgrammar is
    an extra."""
    speculative_config: SpeculativeJson = setting("", "batching")
    """Draft tokens and verify them, which changes none, as vLLM takes it:
    '{"method": "ngram", "num_speculative_tokens": 5}'; empty means none."""
    jump_forward: bool = setting(True, "structured output", advanced=True)
    """Run what a grammar forces in one step and not token by token. The tokens are the same."""
    sampling_backend: str = setting("auto", "kernels", advanced=True)
    """The sampler: auto, torch, cpu or triton, or a name that TensorRT-LLM has for one of them.
    auto is triton on a GPU where it is installed, cpu (a kernel in C++) elsewhere, and torch where
    that could not be built. The tokens are the same."""
    moe_router: Annotated[str, ROUTERS] = setting("top_k", "kernels", advanced=True)
    """The routing of tokens to experts; balanced and skewed are for load tests, not for text."""
    moe_backend: str = setting("auto", "kernels")
    """The kernels of experts: auto, triton, padded, grouped or loop, or a name that vLLM or
    transformers has for one of them, such as deep_gemm or grouped_mm. auto takes the first that
    can."""
    expert_stats_window: int = setting(0, "observability", advanced=True, ge=0, le=100_000)
    """Steps over which the use of experts is counted and then logged; 0 does not count."""
    runtime_stats: bool = setting(False, "observability", advanced=True)
    """Log what steps are made of, how long each kind of layer takes, and what attention planned."""
    runtime_stats_interval: int = setting(100, "observability", advanced=True, ge=1, le=1_000_000)
    """Steps between two such lines."""
    tensor_parallel_size: int = setting(1, "parallelism", ge=1, le=64)
    """Processes that have a part of every weight each, on a GPU each or on this CPU."""
    pipeline_parallel_size: int = setting(1, "parallelism", ge=1, le=64)
    """Pipeline stages of as many processes as above, each with consecutive layers of the model: a
    stage sends the hidden states of a step to the next one."""
    pp_layer_partition: Annotated[str, BeforeValidator(_partition)] = setting(
        "", "parallelism", advanced=True
    )
    """Layers of each stage, by commas; empty means equally many, and one more each for stages
    before the last where they do not come out even."""
    decode_context_parallel_size: int = setting(1, "parallelism", ge=1, le=64)
    """As many neighbouring processes with the same KV heads keep a part of the tokens each instead
    of all of them: the cache has room for as many times the tokens."""
    enable_expert_parallel: bool = setting(False, "parallelism")
    """Experts are dealt out whole to these processes, or to the workers of the group below, in
    place of a part of each."""
    expert_placement_strategy: Literal["linear", "round_robin"] = setting(
        "linear", "parallelism", advanced=True
    )
    """The experts of one process: consecutive ones (linear), or every n-th of n processes
    (round_robin)."""
    enable_eplb: bool = setting(False, "parallelism")
    """Balance the experts of such a group: they move between its workers while it runs, and busy
    ones have replicas."""
    eplb_config: EplbJson = setting("", "parallelism", advanced=True)
    """Its parameters in vLLM's form: '{"window_size": 1000, "step_interval": 3000,
    "num_redundant_experts": 0}' are the defaults."""
    data_parallel_size: int = setting(1, "parallelism", ge=1, le=64)
    """Workers of a group that share the experts and take every step together. `baton serve
    --data-parallel-size` sets this and the next."""
    data_parallel_rank: int = setting(0, "parallelism", advanced=True, ge=0)
    """The rank of this worker among them."""
    all2all_backend: Annotated[str, ALL2ALL] = setting("allgather_reducescatter", "parallelism")
    """The exchange of tokens between them: allgather_reducescatter or naive."""
    threads: int = setting(0, "parallelism", ge=0, le=4096)
    """CPU threads for tensor work, of all such processes together; 0 means all cores."""
    cxx: str = setting("", "kernels", advanced=True)
    """C++ compiler that builds the CPU kernels at first use; empty means any that is found."""
    enable_lora: bool = setting(False, "model")
    """Serve LoRA adapters beside the model, each under a name of its own."""
    lora_modules: str = setting("", "model")
    """Adapters as name=path of their PEFT folders, separated by commas, or as vLLM's JSON."""
    max_loras: int = setting(8, "batching", ge=1, le=4096)
    """Adapters that the sequences of one step may have between them."""
    max_lora_rank: int = setting(64, "model", ge=1, le=512)
    """Largest rank of an adapter."""
    max_cpu_loras: int = setting(64, "memory", ge=1, le=65536)
    """Adapters in the memory of the host."""
    task: Literal["auto", "generate", "embed", "classify", "score", "reward"] = setting(
        "auto", "model"
    )
    """The task that the model is served for; auto is that of its checkpoint."""
    pooling_type: Literal["auto", "mean", "cls", "last", "max"] = setting("auto", "model")
    """How hidden states become one vector; auto is the checkpoint's own pooling."""
    quantization: Annotated[Quantize, BeforeValidator(_of_checkpoint)] = setting("none", "model")
    """Round weights when they are loaded, experts_int8 those of experts alone; what a checkpoint
    has rounded stays as it is."""
    int8_activations: bool = setting(False, "model")
    """Round the inputs of a w8a8 checkpoint to 8 bits by its config, and multiply integers, on a
    CPU; without it inputs stay floats, which is closer to the unquantised model."""

    @property
    def num_ranks(self) -> int:
        """Processes of this worker."""
        return self.pipeline_parallel_size * self.tensor_parallel_size
