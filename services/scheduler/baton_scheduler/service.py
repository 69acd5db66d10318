"""The scheduler's main loop: receive from both sockets, apply events, send decisions."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing

from baton import __version__
from baton.logs import logger
from baton.net.curve import own_keys
from baton.net.discovery import Directory, bind_address, directory
from baton.net.handshake import (
    BEAT_SECONDS,
    incarnation,
)
from baton.net.sockets import Server, wait
from baton.net.topology import FLEET, FRONTEND, Link
from baton.process import gc_tuning, standby
from baton.process.lifecycle import Lifecycle, default_name
from baton.process.watchdog import pulse
from baton.protocol import (
    Hello,
    Stats,
)
from baton_scheduler.config import Config
from baton_scheduler.events import (
    Arrived,
    Clock,
    Closing,
    Decision,
    Dispatch,
    Draining,
    Event,
    Reply,
    Tick,
)
from baton_scheduler.observability.autoscaling import Targets
from baton_scheduler.observability.spans import Spans
from baton_scheduler.observability.stats import stats
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.peers.gateways import GatewayPeers
from baton_scheduler.peers.workers import Hooks, WorkerPeers
from baton_scheduler.replay.recorder import Recorder
from baton_scheduler.state import State

_IDLE_SECONDS = 0.05
"""Maximum wait for a message; bounds the delay until lost peers and signals are noticed."""
_STATS_SECONDS = 0.25

log = logger(__name__)


class Service:
    """Feeds events to the state machine and sends its decisions."""

    def __init__(
        self, config: Config, frontend: Server, fleet: Server, clock: Callable[[], float]
    ) -> None:
        limits = SchedulerOptions.of(config)
        self.state = State(limits)
        self._clock = clock
        self._targets = Targets(config.target_ttft_ms / 1000, config.target_itl_ms / 1000)
        self._frontend, self._fleet = frontend, fleet
        self._me = Hello("scheduler", default_name("scheduler"), incarnation(), __version__)
        self._gateways = GatewayPeers(frontend, self._me, self._apply, clock)
        hooks = Hooks(self._apply, clock, lambda: self._snapshot(clock()), self._tell_soon)
        self._workers = WorkerPeers(
            fleet, self._me, self.state.fleet, hooks, config.worker_hang_seconds
        )
        self._spans = Spans()
        self._recorder: Recorder | None = None
        if config.event_log is not None:
            self._recorder = Recorder(config.event_log, limits, config.event_log_max_bytes)
        self._started = clock()
        self._next_stats = self._next_look = 0.0

    def run(self, life: Lifecycle) -> int:
        """Serve until the process should end. Returns the exit code."""
        while not life.over(self.state.idle):
            pulse.beat()
            wait((self._frontend, self._fleet), _IDLE_SECONDS)
            self.turn(draining=life.draining)
        self.close()
        return 0

    def turn(self, *, draining: bool = False) -> None:
        """One iteration: receive messages, detect lost peers, then decide and send."""
        if draining and not self.state.draining:
            log.info("draining: %d sequences to finish", self.state.num_running)
            self._apply(Draining())
        self._apply(Clock(self._clock()))
        self._gateways.receive()
        self._workers.receive()
        now = self._clock()
        self._expire(now)
        self._apply(Tick(now))
        self._tell(now)

    def close(self) -> None:
        """End every live sequence with an error message, and finish the recording."""
        self._apply(Closing())
        if self._recorder is not None:
            self._recorder.close()

    def _apply(self, event: Event) -> None:
        if isinstance(event, Arrived):
            self._spans.arrived(event.trace)
        decisions = self.state.apply(event)
        if self._recorder is not None:
            self._recorder.note(event, decisions, self.state)
        for decision in decisions:
            self._send(decision)

    def _send(self, decision: Decision) -> None:
        """Send a decision; if that fails, its receiver is treated as lost."""
        if isinstance(decision, Dispatch):
            self._spans.started(decision.message.new_sequences)
        if isinstance(decision, Reply):
            self._gateways.send(decision)
        else:
            self._workers.send(decision)

    def _expire(self, now: float) -> None:
        """Remove silent and hung peers, at the rate of heartbeats rather than every iteration."""
        if now < self._next_look:
            return
        self._next_look = now + BEAT_SECONDS
        self._gateways.expire(now)
        self._workers.expire(now)

    def _tell(self, now: float) -> None:
        if now < self._next_stats:
            return
        self._next_stats = now + _STATS_SECONDS
        self._gateways.broadcast(self._snapshot(now))
        if self._recorder is not None:
            self._recorder.flush()

    def _tell_soon(self) -> None:
        self._next_stats = 0.0

    def _snapshot(self, now: float) -> Stats:
        return stats(
            self.state,
            incarnation=self._me.incarnation,
            uptime=now - self._started,
            dropped_frames=self._frontend.dropped + self._fleet.dropped,
            targets=self._targets,
            hung=self._workers.hung,
        )


def serve(config: Config, life: Lifecycle) -> int:
    """Bind both sockets, announce them and serve."""
    standby.wait()
    gc_tuning.settle()
    with ExitStack() as stack:
        where = stack.enter_context(closing(directory(config)))
        frontend = stack.enter_context(_bind(config, where, FRONTEND, config.bind))
        fleet = stack.enter_context(_bind(config, where, FLEET, config.bind_fleet))
        return Service(config, frontend, fleet, time.monotonic).run(life)


def _bind(config: Config, where: Directory, link: Link, configured: str) -> Server:
    address = bind_address(config, link, configured)
    trusted, keys = config.trusted_network, own_keys(config)
    server = Server(link, address, trusted_network=trusted, keys=keys)
    where.announce(link, default_name("scheduler"), address)
    return server
