"""The state machine of the scheduler: events in, decisions out."""

from baton_scheduler.state.state import State

__all__ = ["State"]
