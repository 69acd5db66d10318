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


def encode_limit(request: GenerationRequest, facts: ModelInfo) -> int:
    """Return the most tokens that a prompt may have before it is cut."""
    cut = request.limits.truncate_prompt_tokens is not None
    return max(_LONGEST, 4 * facts.max_model_len) if cut else facts.max_model_len


def truncated(request: GenerationRequest, ids: PackedTokens, facts: ModelInfo) -> PackedTokens:
    """Return the last ids that the request wants. Cutting a prompt twice is cutting it once.

    Raises `InvalidRequest` for a prompt beyond `encode_limit`, whose end is not known.
    """
    wanted, limit = request.limits.truncate_prompt_tokens, encode_limit(request, facts)
    if wanted is None:
        return ids
    if len(ids) > limit:
        raise InvalidRequest(
            f"The text has more than {limit} tokens, too many to be cut here. Send its end.",
            code="context_length_exceeded",
            param=request.param,
        )
    if wanted == WHATEVER_FITS:
        wanted = max(1, facts.max_model_len - max(1, request.limits.max_tokens or 0))
    return PackedTokens(ids.tail(wanted))
