"""How much of an expected output was generated: a function of the answer alone, not of the
proposer."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from baton.predicted_text import PredictedText
from baton_gateway.schemas.usage import CompletionDetails, Usage


class PredictionUsage:
    """Follows the choices of one request.

    Args:
        prediction: int32 ids of the expected output; empty if none is.
    """

    def __init__(self, prediction: bytes) -> None:
        self._prediction = prediction
        self._choices: dict[int, PredictedText] = {}

    def add(self, choice: int, tokens: Iterable[int]) -> None:
        """Add the next tokens of a choice."""
        if self._prediction:
            if choice not in self._choices:
                self._choices[choice] = PredictedText(self._prediction)
            self._choices[choice].feed(tokens)

    def report(self, usage: Usage) -> None:
        """Write the numbers of accepted and rejected prediction tokens into a usage."""
        if not self._prediction:
            return
        texts = self._choices.values()
        details = usage.completion_tokens_details
        if isinstance(details, msgspec.UnsetType):
            details = usage.completion_tokens_details = CompletionDetails()
        accepted = details.accepted_prediction_tokens = sum(text.accepted for text in texts)
        details.rejected_prediction_tokens = max(0, sum(map(len, texts)) - accepted)
