"""A running sequence changes its worker, behind the pages that were pulled."""

from __future__ import annotations

from baton_scheduler.disaggregation.handoff import ReadyHandoff
from baton_scheduler.events import Decision, Transferred
from baton_scheduler.phase_times import Phase
from baton_scheduler.state.base import StateBase


def begin_handoffs(state: StateBase) -> list[Decision]:
    """Start transfers, and move the sequences that need none."""
    decisions, ready = state.handoffs.begin(state.fleet)
    for passed in ready:
        _change_over(state, passed)
    return decisions


def transferred(state: StateBase, event: Transferred) -> list[Decision]:
    """End a transfer; its sequence moves if it waited for nothing else."""
    if event.pulled.digest:
        target = state.fleet.get(event.worker)
        state.encodings.pulled(event.worker, event.pulled, target)
        return []
    state.counters.failed_transfers += state.handoffs.failed(event.pulled)
    decisions, passed = state.handoffs.end(event.worker, event.pulled, state.fleet)
    if passed is not None:
        _change_over(state, passed)
    return decisions


def _change_over(state: StateBase, passed: ReadyHandoff) -> None:
    """Move a sequence to the target. It continues on the source if the target has no room left, or
    if it has grown beyond the target's maximum length during the pull."""
    live, source, target = passed
    if target.fits(live) and target.has_room(live):
        source.withdraw(live.slot)
        target.place(live, state.number(live.gateway))
        live.phase_timer.leave(Phase.MOVED, state.now)
        state.counters.handoffs += 1
