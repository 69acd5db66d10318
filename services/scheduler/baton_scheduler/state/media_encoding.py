"""Media are encoded on encode workers, for sequences that wait."""

from __future__ import annotations

from baton_scheduler import errors
from baton_scheduler.events import DeathExplained, Decision, MediaSettled
from baton_scheduler.sequence import Sequence
from baton_scheduler.state.base import StateBase


def settled(state: StateBase, event: MediaSettled) -> list[Decision]:
    """Apply an encode worker's answer: sequences whose item it refuses end with an error."""
    refused = state.encodings.encoded(event.worker, event.encoded, state.now)
    return refuse(state, refused, event.encoded.refused)


def explained(state: StateBase, event: DeathExplained) -> list[Decision]:
    """The supervisor has reported why an encode worker exited."""
    return refuse(state, state.encodings.explained(event.epoch, event.cause))


def refuse(state: StateBase, sequences: list[Sequence], reason: str = "") -> list[Decision]:
    """End sequences whose media cannot be encoded."""
    why = reason or "workers died while they encoded it"
    return [state.fail(live, errors.bad_media(live.handle, why)) for live in sequences]
