"""Requests that load and unload adapters, in vLLM's shape."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from baton_gateway.schemas.base import Request
from baton_gateway.schemas.fields import ModelName


class LoadAdapterRequest(Request):
    """POST /v1/load_lora_adapter (vLLM)."""

    lora_name: ModelName
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]
    """Path of the PEFT folder on the workers."""
    load_inplace: bool = False
    """May be in use: new requests get this adapter, running ones keep theirs."""
    base_model_name: ModelName | None = None
    """The base model; null for the only one."""

    @classmethod
    def _special(cls) -> frozenset[str]:
        return frozenset({"lora_path"})


class UnloadAdapterRequest(Request):
    """POST /v1/unload_lora_adapter (vLLM)."""

    lora_name: ModelName
