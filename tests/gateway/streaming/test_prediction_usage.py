"""What has come of an expected output."""

from __future__ import annotations

import msgspec

from baton.protocol.token_columns import pack
from baton_gateway.schemas.usage import CompletionDetails, Usage
from baton_gateway.streaming.prediction_usage import PredictionUsage


def test_each_choice_is_compared_with_the_expected_output() -> None:
    predictions = PredictionUsage(pack([1, 2, 3, 4]))
    predictions.add(0, [1, 2])
    predictions.add(1, [9])
    predictions.add(0, [3])
    usage = Usage.of(5, 4)
    usage.completion_tokens_details = CompletionDetails(reasoning_tokens=2)
    predictions.report(usage)
    assert usage.completion_tokens_details == CompletionDetails(2, 3, 5)


def test_nothing_is_said_of_what_nobody_expected() -> None:
    predictions, usage = PredictionUsage(b""), Usage.of(1, 1)
    predictions.add(0, [1])
    predictions.report(usage)
    assert usage.completion_tokens_details is msgspec.UNSET
