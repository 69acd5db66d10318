"""The state machine of the scheduler: events in, decisions out, without clock, socket or
randomness.

A live sequence is in exactly one place, and ends exactly once:

    arrived --> queue <-----> one slot of one worker --> ended: finish reason, error, or abort
                  |                                        ^
                  +----------------------------------------+

`apply` is the table of events. Each event is handled by a function of a module: `administration`,
`admission`, `cancellation`, `media_encoding`, `membership`, `quarantine`, `migration`,
`settlement`, `dispatch`; `base` has their common part.

Equal events give equal decisions on every machine; `baton replay` checks this.
"""

from __future__ import annotations

from typing import assert_never

from baton.protocol import CacheReset
from baton_scheduler.events import (
    Aborted,
    AdminRequested,
    Arrived,
    CacheCleared,
    Clock,
    Closing,
    DeathExplained,
    Decision,
    Draining,
    Event,
    GatewayLost,
    MediaSettled,
    Reply,
    Settled,
    Tick,
    Transferred,
    WorkerAssigned,
    WorkerDraining,
    WorkerJoined,
    WorkerLeft,
    WorkerReplied,
)
from baton_scheduler.state import (
    administration,
    admission,
    cancellation,
    dispatch,
    inspection,
    media_encoding,
    membership,
    migration,
    quarantine,
    settlement,
)
from baton_scheduler.state.base import StateBase


class State(StateBase):
    """The state; changed only by `apply`."""

    def apply(self, event: Event) -> list[Decision]:
        """Apply an event. Returns the messages to send, in this order."""
        match event:
            case Settled():
                return settlement.settled(self, event)
            case Tick():
                return dispatch.tick(self, event)
            case Arrived():
                return admission.arrived(self, event)
            case Aborted():
                return cancellation.aborted(self, event)
            case GatewayLost():
                return cancellation.gateway_lost(self, event)
            case Transferred():
                return migration.transferred(self, event)
            case MediaSettled():
                return media_encoding.settled(self, event)
            case WorkerJoined():
                return membership.worker_joined(self, event)
            case WorkerLeft():
                return membership.worker_left(self, event)
            case DeathExplained():
                return quarantine.explained(self, event) + media_encoding.explained(self, event)
            case WorkerDraining():
                return membership.worker_draining(self, event)
            case WorkerAssigned():
                return membership.worker_assigned(self, event)
            case AdminRequested():
                return administration.requested(self, event)
            case WorkerReplied():
                return administration.replied(self, event)
            case CacheCleared():
                pages = sum(worker.pool.reset() for worker in self.fleet)
                return [Reply(event.gateway, CacheReset(event.id, pages))]
            case Clock():
                self.now = event.now
                return []
            case Draining():
                self.draining = True
                return []
            case Closing():
                return cancellation.close(self)
            case _:
                assert_never(event)

    def digest(self) -> bytes:
        """16 bytes that differ whenever a decision could; see `inspection.digest`."""
        return inspection.digest(self)

    def check(self) -> None:
        """Assert all invariants of the state and its parts."""
        inspection.check(self)
