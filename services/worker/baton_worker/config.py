"""Settings of the worker."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from baton.settings import Settings
from baton_worker.grammar import GRAMMARS
from baton_worker.layers.routers import ROUTERS


class Config(Settings, prefix="worker"):
    """Device, precision, memory and batch size."""

    name: str = ""
    """Name in logs and on the fleet page; empty means host name and process id."""
    role: Literal["both", "prefill", "decode"] = "both"
    """Legs of the relay that it runs: prefill workers pass sequences on to decode workers."""
    bind_pages: str = ""
    """Address that serves KV pages to other workers; empty means a socket in the run directory."""
    advertise_pages: str = ""
    """Address under which other workers reach it, when it is not the one that is bound."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of weights and activations; auto is bfloat16 where the device is fast at it."""
    kv_cache_dtype: Literal["auto", "fp8", "int8"] = "auto"
    """Keys and values in pages: those of the model's precision, or one byte per number and a scale
    per token and head. Workers that pass sequences on to each other need the same."""
    page_size: int = Field(default=16, ge=1, le=256)
    """Tokens per KV page."""
    num_pages: int = Field(default=0, ge=0)
    """KV pages; 0 measures free memory and takes the share below."""
    memory_share: float = Field(default=0.5, gt=0, le=0.95)
    """Share of free memory that KV pages may take when their number is not given."""
    max_kv_bytes: int = Field(default=4 * 1024**3, ge=0)
    """Upper bound on KV pages in bytes on a CPU; 0 means none."""
    host_cache_bytes: int = Field(default=0, ge=0)
    """Bytes of host memory for KV pages that had to make room and may be wanted again; 0 means
    none. Workers that pass sequences on (`role`) do without it."""
    max_rows: int = Field(default=256, ge=1, le=4096)
    """Most sequences in the batch."""
    max_batch_tokens: int = Field(default=2048, ge=1)
    """Most new tokens in one step."""
    max_length: int = Field(default=0, ge=0)
    """Longest sequence; 0 means what the model was trained for."""
    grammar: Annotated[str, GRAMMARS] = "llguidance"
    """Engine that makes structured output follow its grammar."""
    router: Annotated[str, ROUTERS] = "top_k"
    """How tokens choose their experts; balanced and skewed are for load tests, not for text."""
    expert_window: int = Field(default=0, ge=0, le=100_000)
    """Steps over which the use of experts is counted and then logged; 0 does not count."""
    threads: int = Field(default=0, ge=0)
    """CPU threads for tensor work; 0 means all cores."""
    compiler: str = ""
    """C++ compiler that builds the CPU kernels at first use; empty means any that is found."""
    task: Literal["auto", "generate", "embed", "classify", "score", "reward"] = "auto"
    """What the model is served for; auto is what its checkpoint was made for."""
    pooling: Literal["auto", "mean", "cls", "last", "max"] = "auto"
    """Which states of a text make its vector; auto is what the checkpoint asks for."""
    quantize: Literal["none", "int8", "int4"] = "none"
    """Round weights when they are loaded; what a GGUF file has rounded stays as it is."""
