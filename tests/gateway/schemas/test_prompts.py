from __future__ import annotations

import msgspec

from baton_gateway.schemas.prompts import QuoteRequest, QuoteResponse, RenderedPrompt
from tests.fakes.gateway_app import chat, completion


def test_a_quote_is_asked_for_with_the_request_itself() -> None:
    assert QuoteRequest.model_validate(chat()).root.model == "tiny"
    assert type(QuoteRequest.model_validate(completion()).root).__name__ == "CompletionRequest"


def test_unknown_times_are_null() -> None:
    unknown = dict.fromkeys(("queue_ms", "prefill_ms", "decode_ms", "total_ms"))
    quote = QuoteResponse(
        model="m", prompt_tokens=1, max_completion_tokens=1, queue_position=0, **unknown
    )
    assert msgspec.to_builtins(quote).items() >= unknown.items()
    assert msgspec.to_builtins(RenderedPrompt("a", [97], 4))["start"] is None
