"""Settings of the worker."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from baton.settings import Settings
from baton_worker.grammar import GRAMMARS


class Config(Settings, prefix="worker"):
    """Device, precision, memory and batch size."""

    name: str = ""
    """Name in logs and on the fleet page; empty means host name and process id."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of weights and activations; auto is bfloat16 where the device is fast at it."""
    page_size: int = Field(default=16, ge=1, le=256)
    """Tokens per KV page."""
    num_pages: int = Field(default=0, ge=0)
    """KV pages; 0 measures free memory and takes the share below."""
    memory_share: float = Field(default=0.5, gt=0, le=0.95)
    """Share of free memory that KV pages may take when their number is not given."""
    max_kv_bytes: int = Field(default=4 * 1024**3, ge=0)
    """Upper bound on KV pages in bytes on a CPU; 0 means none."""
    max_rows: int = Field(default=256, ge=1, le=4096)
    """Most sequences in the batch."""
    max_batch_tokens: int = Field(default=2048, ge=1)
    """Most new tokens in one step."""
    max_length: int = Field(default=0, ge=0)
    """Longest sequence; 0 means what the model was trained for."""
    grammar: Annotated[str, GRAMMARS] = "llguidance"
    """Engine that makes structured output follow its grammar."""
    threads: int = Field(default=0, ge=0)
    """CPU threads for tensor work; 0 means all cores."""
