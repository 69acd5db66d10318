"""Sampling parameters that a request does not set: the model's recommended values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from baton_gateway.schemas.sampled_request import SampledRequest

B = TypeVar("B", bound=SampledRequest)
_LIMITS = {"max_tokens", "max_completion_tokens"}


def with_defaults(body: B, defaults: Mapping[str, int | float]) -> B:
    """Return the request with the model's defaults for fields that it does not set.

    Args:
        defaults: values by field of generation_config.json; `max_new_tokens` applies to max_tokens.

    A beam search has no sampling parameters and is unchanged.
    """
    if not defaults or body.beams is not None:
        return body
    set_fields = body.model_fields_set
    missing = {name: value for name, value in defaults.items() if name not in set_fields}
    limit = missing.pop("max_new_tokens", None)
    if limit is not None and set_fields.isdisjoint(_LIMITS):
        missing["max_tokens"] = max(limit, body.min_tokens)
    return body.model_copy(update=missing)
