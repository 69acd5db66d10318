"""Removes pixels from recorded events and decisions: no decision depends on them, and a recording
would be a thousand times larger."""

from __future__ import annotations

from msgspec.structs import replace

from baton.protocol import EncodeMedia, Media
from baton_scheduler.events import Arrived, Decision, Dispatch, Event, WorkerMessage


def event_without_pixels(event: Event) -> Event:
    """The event in the form in which it is recorded."""
    if not isinstance(event, Arrived) or not event.submit.media:
        return event
    return replace(event, submit=replace(event.submit, media=_bare(event.submit.media)))


def decision_without_pixels(decision: Decision) -> Decision:
    """The decision in the form in which it is compared."""
    if isinstance(decision, WorkerMessage) and isinstance(decision.message, EncodeMedia):
        [item] = _bare((decision.message.item,))
        return decision._replace(message=replace(decision.message, item=item))
    if not isinstance(decision, Dispatch):
        return decision
    plan = decision.message
    if not any(new.media for new in plan.new_sequences):
        return decision
    entering = tuple(replace(new, media=_bare(new.media)) for new in plan.new_sequences)
    return decision._replace(message=replace(plan, new_sequences=entering))


def _bare(media: tuple[Media, ...]) -> tuple[Media, ...]:
    return tuple(replace(item, pixels=replace(item.pixels, data=b"")) for item in media)
