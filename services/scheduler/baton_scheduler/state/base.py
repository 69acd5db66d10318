"""The state of the scheduler, and the transitions of a sequence that several events share."""

from __future__ import annotations

import msgspec

from baton.protocol import AdminCommand, Failed, WeightVersion
from baton_scheduler import errors
from baton_scheduler.deadlines import Deadlines
from baton_scheduler.disaggregation.handoff import Handoffs
from baton_scheduler.disaggregation.media_encodings import MediaEncodings
from baton_scheduler.events import Decision, Reply
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.phase_times import Phase
from baton_scheduler.placement.placement import Placement
from baton_scheduler.placement.policies import PLACEMENTS, parse_scores
from baton_scheduler.queueing.model_queues import ModelQueues
from baton_scheduler.queueing.policies import parse_weights
from baton_scheduler.sequence import Sequence
from baton_scheduler.state.counters import Counters
from baton_scheduler.state.pending_command import PendingCommand
from baton_scheduler.state.weight_update import WeightUpdate
from baton_scheduler.suspects import SuspectSearch
from baton_scheduler.workers.adapter_registry import AdapterRegistry
from baton_scheduler.workers.fleet import Fleet
from baton_scheduler.workers.meters import ModelRates, RateMeter


class StateBase:
    """Queues, fleet and live sequences. A sequence is in the queue or in one slot of one worker."""

    def __init__(self, limits: SchedulerOptions) -> None:
        self.options = limits
        self.now = 0.0
        self.draining = False
        self.queue = ModelQueues(limits.scheduling_policy, parse_weights(limits.tenant_weights))
        self.fleet = Fleet()
        weights = parse_scores(limits.placement_weights)
        self.placement: Placement = PLACEMENTS.load(limits.placement_policy)(weights)
        self.handoffs = Handoffs(self.placement)
        self.encodings = MediaEncodings(self.placement.links, self.fleet.encoders)
        self.searches: list[SuspectSearch] = []
        """Searches for sequences that crash workers."""
        self.counters = Counters()
        self.sampled = RateMeter()
        """Tokens sampled per second."""
        self.computed = ModelRates()
        """Tokens computed per second, prompts included."""
        self.start_rates = ModelRates()
        """Sequences started per second."""
        self.live: dict[tuple[str, int], Sequence] = {}
        self.gateways: dict[int, str] = {}
        """Number of a gateway in slot table columns -> its name."""
        self.numbers: dict[str, int] = {}
        self.latest: dict[str, Sequence] = {}
        """Gateway -> its latest sequence; the choices of a request arrive one after the other."""
        self.deadlines = Deadlines(self.live)
        self.adapters = AdapterRegistry()
        self.paused: set[str] = set()
        """Models whose sequences must not run."""
        self.pausing: list[tuple[str, AdminCommand]] = []
        """Gateway and command of pauses that are not answered yet."""
        self.commands: dict[int, PendingCommand] = {}
        """Operator commands that some workers have not answered yet; see `administration`."""
        self.weights: dict[str, WeightVersion] = {}
        """Model -> weights that its workers agree on."""
        self.updates: dict[str, WeightUpdate] = {}
        """Model -> weight update in progress; see `weight_updates`."""
        self.alone_since: dict[str, float] = {}
        """Model -> time since which no worker accepts its sequences; absent while one does."""

    @property
    def num_running(self) -> int:
        """Sequences that hold a slot."""
        return len(self.live) - len(self.queue)

    @property
    def idle(self) -> bool:
        """True if no sequence is alive."""
        return not self.live

    def drop(self, live: Sequence) -> None:
        """End a sequence without a message, wherever it is."""
        worker = self.fleet.get(live.worker)
        if worker is None:
            self.queue.remove(live)
        else:
            worker.withdraw(live.slot)
        self.forget(live)

    def fail(self, live: Sequence, failed: Failed) -> Decision:
        """End a sequence with an error, wherever it is."""
        self.drop(live)
        return self.failure(live, failed)

    def failure(self, live: Sequence, failed: Failed) -> Decision:
        """The error message of a sequence that has ended."""
        times = live.phase_timer.times(self.now)
        return Reply(live.gateway, msgspec.structs.replace(failed, phase_times=times))

    def forget(self, live: Sequence) -> None:
        """End a sequence that has left its queue or slot."""
        live.end()
        self.encodings.release(live)
        del self.live[live.gateway, live.handle]

    def requeue(self, preempted: list[Sequence]) -> None:
        """Return preempted sequences to the queue."""
        self.counters.preemptions += len(preempted)
        for live in preempted:
            live.phase_timer.leave(Phase.PREEMPTED, self.now)
            self.enqueue(live)

    def rerun(self, lost: list[Sequence]) -> list[Decision]:
        """Return sequences without the token or vector that a step should have returned to the
        queue. A sequence to which this keeps happening fails."""
        decisions: list[Decision] = []
        for live in lost:
            live.losses += 1
            self.requeue_lost(live)
            if live.losses >= self.options.max_worker_losses:
                failed = errors.quarantined(live.handle, live.losses)
                decisions.append(self.fail(live, failed))
        return decisions

    def requeue_lost(self, live: Sequence) -> None:
        """Return a lost sequence to the queue, where its key puts it before all later ones."""
        live.phase_timer.leave(Phase.LOST, self.now)
        self.enqueue(live)

    def enqueue(self, live: Sequence) -> None:
        """Put a sequence into its queue. It will start on the current weights of its model."""
        if (version := self.weights.get(live.model)) is not None:
            live.use_weights(version.digest)
        self.queue.push(live)
        self.encodings.release(live)
        self.request_encodings(live)

    def request_encodings(self, live: Sequence) -> None:
        """Queue the media of a waiting sequence for encode workers where that is estimated to pay
        off."""
        self.encodings.request(live, self.fleet.serving(live.model))

    def number(self, gateway: str) -> int:
        """Number of a gateway in slot table columns."""
        number = self.numbers.get(gateway)
        if number is None:
            number = max(self.gateways, default=0) + 1
            self.numbers[gateway], self.gateways[number] = number, gateway
        return number

    def sequences(self) -> list[Sequence]:
        """A copy of the live sequences, in the order of their arrival."""
        return list(self.live.values())
