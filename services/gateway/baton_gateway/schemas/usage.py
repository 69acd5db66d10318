"""Token counts of a response."""

from __future__ import annotations

import msgspec


class PromptDetails(msgspec.Struct):
    """`usage.prompt_tokens_details`"""

    cached_tokens: int = 0


class CompletionDetails(msgspec.Struct):
    """`usage.completion_tokens_details`"""

    reasoning_tokens: int = 0
    """Tokens of the model's thinking, including its closing delimiter."""
    accepted_prediction_tokens: int = 0
    """Output tokens equal to `prediction`."""
    rejected_prediction_tokens: int = 0
    """Tokens of `prediction` that were not generated."""


class Usage(msgspec.Struct):
    """Token counts of a whole request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails = msgspec.field(default_factory=PromptDetails)
    completion_tokens_details: CompletionDetails | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(cls, prompt: int, completion: int, cached: int = 0) -> Usage:
        """Create the counts, their total, and the number of cached prompt tokens."""
        return cls(prompt, completion, prompt + completion, PromptDetails(cached))
