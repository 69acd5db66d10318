"""`truncate_prompt_tokens`: only the last tokens of a prompt are used."""

from __future__ import annotations

from baton.errors import InvalidRequest
from baton.protocol.packed_tokens import PackedTokens
from baton_gateway.catalogue import ModelInfo
from baton_gateway.generation.request import GenerationRequest

WHATEVER_FITS = -1
"""Value that keeps as much as leaves room for the output."""
_LONGEST = 32768
"""Tokens that are always encoded; beyond it, text of up to four contexts."""


def encode_limit(request: GenerationRequest, model_info: ModelInfo) -> int:
    """Return the maximum tokens of a prompt before truncation."""
    cut = request.limits.truncate_prompt_tokens is not None
    return max(_LONGEST, 4 * model_info.max_model_len) if cut else model_info.max_model_len


def truncated(request: GenerationRequest, ids: PackedTokens, model_info: ModelInfo) -> PackedTokens:
    """Return the last ids that the request asks to keep. Truncation is idempotent.

    Raises `InvalidRequest` for a prompt beyond `encode_limit`, whose end is not known.
    """
    most, limit = request.limits.truncate_prompt_tokens, encode_limit(request, model_info)
    if most is None:
        return ids
    if len(ids) > limit:
        raise InvalidRequest(
            f"The text has more than {limit} tokens, too many to be cut here. Send its end.",
            code="context_length_exceeded",
            param=request.param,
        )
    if most == WHATEVER_FITS:
        most = max(1, model_info.max_model_len - max(1, request.limits.max_tokens or 0))
    return PackedTokens(ids.tail(most))
