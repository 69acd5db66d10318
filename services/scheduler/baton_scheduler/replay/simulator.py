"""Simulates a recorded run under another policy or with more encode workers; compares latencies.

The recording contains arrivals, output tokens and step times, but not the workers' results for
plans that were never sent. So both the recorded and the other run are simulated alike:

- a worker is busy while it has a plan; a step lasts a + b * tokens seconds, fitted by least squares
  to all recorded steps, and a KV transfer and an encoding likewise;
- a sequence produces its recorded tokens, and ends after them if it was stopped or aborted; one
  that the recording does not finish continues to its `max_tokens`.
"""

from __future__ import annotations

import heapq
from collections import deque
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import msgspec

from baton.errors import SettingsError
from baton.protocol import EncodeMedia, MediaEncoded, Pull, Pulled, Tokens
from baton.protocol.token_columns import unpack
from baton_scheduler.events import (
    Arrived,
    Decision,
    Dispatch,
    Event,
    MediaSettled,
    Settled,
    Tick,
    Transferred,
    WorkerJoined,
    WorkerLeft,
    WorkerMessage,
)
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.placement.placement import token_bytes
from baton_scheduler.placement.policies import PLACEMENTS
from baton_scheduler.queueing.policies import ORDERS
from baton_scheduler.replay.recorder import load
from baton_scheduler.replay.script import Script, build_script, with_encode_workers
from baton_scheduler.replay.simulated_encoder import SimulatedEncoder
from baton_scheduler.replay.simulated_worker import SimulatedWorker
from baton_scheduler.state import State

_MOST_TURNS = 10_000_000
"""Iteration limit of a simulation; endless work is an error, not a hang."""


class SimulatedLatency(NamedTuple):
    """Results of a simulation."""

    hits: float
    """Share of prompt tokens found in a prefix cache."""
    mean: float
    """Mean time to first token in seconds."""
    p95: float
    """95th percentile of the time to first token in seconds."""
    moved: int
    """Tokens whose KV was transferred between workers."""


class Comparison(NamedTuple):
    """Results of the recorded and the other run."""

    names: tuple[str, str]
    changes: list[Change]
    """One entry per tenant that had a token under both."""
    figures: tuple[SimulatedLatency, SimulatedLatency]
    waits: tuple[list[float], list[float]]
    """Seconds to the first token of every sequence that had one, in order of arrival."""


class Change(NamedTuple):
    """A tenant's mean time to first token in seconds in both runs."""

    tenant: str
    requests: int
    before: float
    after: float


def compare(
    path: Path,
    *,
    scheduling_policy: str = "",
    placement_policy: str = "",
    encode_workers: int = 0,
) -> Comparison:
    """Simulate a recording as it was, and with another queueing policy, placement policy or number
    of encode workers; empty or 0 values are unchanged.

    Raises `SettingsError` if the file is no recording, a policy is unknown, or encode workers are
    requested where none has been recorded.
    """
    limits, events = load(path)
    order = ORDERS.check(scheduling_policy or limits.scheduling_policy)
    placement = PLACEMENTS.check(placement_policy or limits.placement_policy)
    script = build_script(limits, events)
    other = msgspec.structs.replace(limits, scheduling_policy=order, placement_policy=placement)
    changed = with_encode_workers(script, encode_workers) if encode_workers else script
    runs = [Simulation(limits, script), Simulation(other, changed)]
    before, after = (run.run() for run in runs)
    tenants = {tenant for tenant, _ in before.values()}
    return Comparison(
        names=(_name(limits), _name(other, encode_workers)),
        changes=[_change(tenant, before, after) for tenant in sorted(tenants)],
        figures=(runs[0].figures(), runs[1].figures()),
        waits=(_seconds(before), _seconds(after)),
    )


def _name(limits: SchedulerOptions, encode_workers: int = 0) -> str:
    encoders = (f"{encode_workers} to encode",) if encode_workers else ()
    return ", ".join((limits.scheduling_policy, limits.placement_policy, *encoders))


def _seconds(waits: Waits) -> list[float]:
    return [waits[number][1] for number in sorted(waits)]


Waits = dict[int, tuple[str, float]]
"""sequence -> (tenant, seconds from its arrival to its first token)"""


def _change(tenant: str, before: Waits, after: Waits) -> Change:
    both = [n for n, (whose, _) in before.items() if whose == tenant and n in after]
    if not both:
        return Change(tenant, 0, float("nan"), float("nan"))
    means = (fmean(waits[n][1] for n in both) for waits in (before, after))
    return Change(tenant, len(both), *means)


class Simulation:
    """A state, its simulated workers and their event queues."""

    def __init__(self, limits: SchedulerOptions, script: Script) -> None:
        # Plans of several steps do not change the order and would need truncation here.
        self._state, self._script = (
            State(msgspec.structs.replace(limits, max_steps_per_plan=1)),
            script,
        )
        self._inputs = deque(script.inputs)
        self._workers: dict[str, SimulatedWorker] = {}
        self._steps: list[tuple[float, int, str, int, float]] = []
        """Running steps by end time: (end, number, worker, epoch, seconds)."""
        self._pulls: list[tuple[float, int, str, Pulled]] = []
        """Transfers in progress by end time: (end, number, worker, result)."""
        self._encoders: dict[str, SimulatedEncoder] = {}
        self._encodings: list[tuple[float, int, str, MediaEncoded]] = []
        """Media in encoders by end time: (end, number, worker, result)."""
        self._begun = 0
        self._numbers: dict[tuple[str, int], int] = {}
        self._arrivals: list[tuple[str, float]] = []
        """(tenant, time) by number."""
        self._waits: Waits = {}

    def run(self) -> Waits:
        """Run the simulation. Returns the waiting time to the first token of every sequence that
        had one."""
        for _ in range(_MOST_TURNS):
            queues = (self._inputs, self._steps, self._pulls, self._encodings)
            times = [queue[0][0] for queue in queues if queue]
            if not times:
                return self._waits
            self._turn(min(times))
        raise SettingsError("The simulation does not come to an end.")

    def _turn(self, now: float) -> None:
        """Apply all events of one moment, then send its plans."""
        self._apply(Tick(now))
        while self._inputs and self._inputs[0][0] <= now:
            self._input(self._inputs.popleft()[1])
        while self._steps and self._steps[0][0] <= now:
            _, _, name, epoch, seconds = heapq.heappop(self._steps)
            worker = self._workers.get(name)
            if worker is not None and worker.epoch == epoch:
                worker.busy = False
                self._apply(Settled(name, worker.step(self._script, round(seconds * 1e6))))
        while self._pulls and self._pulls[0][0] <= now:
            _, _, name, pulled = heapq.heappop(self._pulls)
            self._apply(Transferred(name, pulled))
        while self._encodings and self._encodings[0][0] <= now:
            _, _, name, encoded = heapq.heappop(self._encodings)
            self._apply(MediaSettled(name, encoded))
        self._apply(Tick(now))
        for name, worker in self._workers.items():
            if worker.plans and not worker.busy:
                self._begin(name, worker)

    def _input(self, event: Event) -> None:
        if isinstance(event, WorkerJoined) and event.info.role == "encode":
            self._encoders[event.name] = SimulatedEncoder(event.epoch)
        elif isinstance(event, WorkerJoined):
            self._workers[event.name] = SimulatedWorker(event.epoch, token_bytes(event.info))
        elif isinstance(event, WorkerLeft):
            self._workers.pop(event.name, None)
            self._encoders.pop(event.name, None)
        elif isinstance(event, Arrived):
            number = len(self._arrivals)
            self._numbers[event.gateway, event.submit.handle] = number
            self._arrivals.append((event.submit.tenant, self._state.now))
            submit = msgspec.structs.replace(event.submit, request=str(number))
            event = Arrived(event.gateway, submit, deadline_ms=event.deadline_ms)
        self._apply(event)

    def _apply(self, event: Event) -> None:
        for decision in self._state.apply(event):
            self._take(decision)

    def _take(self, decision: Decision) -> None:
        if isinstance(decision, Dispatch):
            self._workers[decision.worker].plans.append(decision.message)
        elif isinstance(decision, WorkerMessage):
            if isinstance(decision.message, Pull):
                self._transfer(decision.worker, decision.message)
            elif isinstance(decision.message, EncodeMedia):
                self._encode(decision.worker, decision.message)
        elif isinstance(decision.message, Tokens):
            for handle in unpack(decision.message.handles, "I"):
                number = self._numbers[decision.gateway, handle]
                tenant, since = self._arrivals[number]
                self._waits.setdefault(number, (tenant, self._state.now - since))

    def _encode(self, name: str, order: EncodeMedia) -> None:
        end, done = self._encoders[name].answer(order, self._script, self._state.now)
        self._begun += 1
        heapq.heappush(self._encodings, (end, self._begun, name, done))

    def _transfer(self, name: str, pull: Pull) -> None:
        least, per_token = self._script.pull_media if pull.digest else self._script.pull
        tokens = pull.end - pull.start
        seconds = least + per_token * tokens
        size = 0 if pull.digest else round(tokens * self._workers[name].token_bytes)
        micros = round(seconds * 1e6)
        pulled = Pulled(pull.epoch, pull.id, "", size, micros, digest=pull.digest)
        self._begun += 1
        heapq.heappush(self._pulls, (self._state.now + seconds, self._begun, name, pulled))

    def figures(self) -> SimulatedLatency:
        """Results, after `run`."""
        waits = sorted(seconds for _, seconds in self._waits.values()) or [float("nan")]
        counters = self._state.counters
        return SimulatedLatency(
            hits=counters.prefix_hits / max(1, counters.prefix_queries),
            mean=fmean(waits),
            p95=waits[int(0.95 * (len(waits) - 1))],
            moved=self._state.handoffs.moved_tokens,
        )

    def _begin(self, name: str, worker: SimulatedWorker) -> None:
        least, per_token = self._script.step
        seconds = least + per_token * sum(unpack(worker.plans[0].num_scheduled, "I"))
        self._begun += 1
        end = self._state.now + seconds
        heapq.heappush(self._steps, (end, self._begun, name, worker.epoch, seconds))
        worker.busy = True
