"""Generation requests from single fields."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from baton.protocol import Sampling
from baton_gateway.generation.request import (
    GenerationRequest,
    RequestIdentity,
    RequestLimits,
    RequestSinks,
    SamplingOptions,
    TextOptions,
)

GROUPS = {
    "identity": RequestIdentity,
    "sampling": SamplingOptions,
    "text": TextOptions,
    "limits": RequestLimits,
    "sinks": RequestSinks,
}


def request_of(**given: Any) -> GenerationRequest:
    """A request with these fields, whichever of its groups they belong to; `sampling` stands for
    the parameters among the sampling options."""
    flat: dict[str, Any] = {"id": "r1", "params": given.pop("sampling", Sampling(max_tokens=0))}
    flat |= {"seed": 7, "param": "prompt"} | given
    groups = {
        name: kind(**{f.name: flat.pop(f.name) for f in fields(kind) if f.name in flat})
        for name, kind in GROUPS.items()
    }
    return GenerationRequest(**groups, **flat)
