"""Explanations: shares, milliseconds and the one line."""

from __future__ import annotations

from baton.protocol import PhaseTimes
from baton_gateway.observability.latency_explanation import ChoiceTimeline, TimelinePart, summary


def test_a_part_is_a_share_of_the_wall_time() -> None:
    assert TimelinePart.of("decode", 0.25, 1.0) == TimelinePart("decode", "worker", 250.0, 0.25)
    assert TimelinePart.of("receive", 0.0, 0.0).share == 0.0


def test_a_choice_has_the_times_of_the_scheduler() -> None:
    times = PhaseTimes(
        queued=0.5, decode=2.0, losses=1, worker="w", draft_tokens=9, accepted_tokens=4
    )
    choice = ChoiceTimeline.of(1, times)
    assert (choice.draft_tokens, choice.accepted_tokens) == (9, 4)
    assert (choice.choice, choice.queue_ms, choice.decode_ms) == (1, 500.0, 2000.0)
    assert (choice.worker_losses, choice.worker) == (1, "w")


def test_the_summary_names_the_three_largest() -> None:
    spent = {"decode": 0.5, "queue": 0.25, "prefill": 0.2, "receive": 0.05}
    parts = [TimelinePart.of(cause, seconds, 1.0) for cause, seconds in spent.items()]
    assert summary(parts, None) == "decode 50 %, queue 25 %, prefill 20 %"
    assert summary(parts, PhaseTimes(batch_neighbours=2.0)).endswith("shared with 2.0 others")
