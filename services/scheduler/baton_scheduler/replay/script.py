"""Extracts the input of a simulation from a recording: arrivals, output tokens, costs of steps and
pulls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from baton.errors import SettingsError
from baton.protocol import EncodeMedia, Plan, Pull, Tokens
from baton.protocol.token_columns import pack, unpack
from baton_scheduler.events import (
    Aborted,
    Arrived,
    Clock,
    Closing,
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
from baton_scheduler.state import State


@dataclass
class Script:
    """Content of a recording. Sequences are numbered in order of arrival."""

    logs: list[list[int]] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    """Sequences that end after their log, since they were stopped or aborted."""
    inputs: list[tuple[float, Event]] = field(default_factory=list)
    """(time, event) of external events, without ticks and results."""
    step: tuple[float, float] = (0.0, 0.0)
    """Seconds per step and per token."""
    pull: tuple[float, float] = (0.0, 0.0)
    """Seconds per transfer and per token."""
    encode: tuple[float, float] = (0.0, 0.0)
    """Seconds per media item on an encode worker, and per embedding."""
    pull_media: tuple[float, float] = (0.0, 0.0)
    """Seconds per transfer of embeddings, and per embedding."""


def build_script(limits: SchedulerOptions, events: Iterable[Event]) -> Script:
    """Apply the recorded events once and collect the input of a simulation."""
    builder = _ScriptBuilder(limits)
    for event in events:
        builder.apply(event)
    return builder.script()


class _ScriptBuilder:
    """Collects the script of a recording from its events and from the decisions that follow."""

    def __init__(self, limits: SchedulerOptions) -> None:
        self._state, self._script = State(limits), Script()
        self._numbers: dict[tuple[str, int], int] = {}
        """(gateway, handle) -> number of the sequence."""
        self._sizes: dict[tuple[str, int], int] = {}
        """Worker and step, or minus the number of a pull -> its tokens."""
        self._steps: list[tuple[int, int]] = []
        self._pulls: list[tuple[int, int]] = []
        """(tokens, microseconds) of each."""
        self._media = MediaCosts()

    def apply(self, event: Event) -> None:
        """Note the event, apply it, and note what is decided."""
        self._note(event)
        if isinstance(event, Arrived):
            self._numbers[event.gateway, event.submit.handle] = len(self._script.logs)
            self._script.logs.append(_log(event))
        for decision in self._state.apply(event):
            self._expect(decision)

    def script(self) -> Script:
        """The script of all events. Raises `SettingsError` if no step has ended."""
        if not self._steps:
            raise SettingsError("No step ends in this recording: a worker's speed is not known.")
        self._script.step = fit(self._steps)
        self._script.pull = fit(self._pulls) if self._pulls else (0.0, 0.0)
        self._script.encode, self._script.pull_media = self._media.lines()
        return self._script

    def _note(self, event: Event) -> None:
        if isinstance(event, Settled):
            if size := self._sizes.pop((event.worker, event.result.step), 0):
                self._steps.append((size, event.result.duration_us))
        elif self._media.note(event):
            pass
        elif isinstance(event, Transferred):
            size = self._sizes.pop((event.worker, -event.pulled.id), 0)
            if size and not event.pulled.reason:
                self._pulls.append((size, event.pulled.duration_us))
        elif isinstance(event, Aborted):
            self._abort(event)
        elif not isinstance(event, (Tick, Clock, Closing)):
            self._script.inputs.append((self._state.now, event))

    def _expect(self, decision: Decision) -> None:
        if isinstance(decision, Dispatch):
            self._sizes |= _sizes(decision.worker, decision.message)
        elif self._media.expect(decision):
            pass
        elif isinstance(decision.message, Pull):
            pull = decision.message
            self._sizes[decision.worker, -pull.id] = pull.end - pull.start
        elif isinstance(decision.message, Tokens):
            self._write(decision.gateway, decision.message)

    def _abort(self, event: Aborted) -> None:
        """Record an abort as a stop of a sequence with tokens, or as the maximum wait of one
        without."""
        silent = []
        for handle in unpack(event.handles, "I"):
            number = self._numbers.get((event.gateway, handle))
            if number is not None and self._script.logs[number]:
                self._script.ended.add(number)
            else:
                silent.append(handle)
        if silent:
            aborted = Aborted(event.gateway, pack(silent, "I"))
            self._script.inputs.append((self._state.now, aborted))

    def _write(self, gateway: str, message: Tokens) -> None:
        for handle, token in zip(unpack(message.handles, "I"), unpack(message.tokens), strict=True):
            self._script.logs[self._numbers[gateway, handle]].append(token)
        stopped = [handle for handle, reason in message.finished.items() if reason == "stop"]
        self._script.ended.update(self._numbers[gateway, handle] for handle in stopped)


def with_encode_workers(script: Script, count: int) -> Script:
    """The same with `count` encode workers like the first one of the recording, all present from
    its start.

    Raises `SettingsError` if the recording has no encode worker, since their cost is unknown then.
    """
    joins = [
        (now, event)
        for now, event in script.inputs
        if isinstance(event, WorkerJoined) and event.info.role == "encode"
    ]
    if not joins:
        raise SettingsError("No encode worker joins in this recording: its speed is not known.")
    recorded = {event.name for _, event in joins}
    others = [
        (now, event)
        for now, event in script.inputs
        if not (isinstance(event, (WorkerJoined, WorkerLeft)) and event.name in recorded)
    ]
    now, first = joins[0]
    encoders: list[tuple[float, Event]] = [
        (now, msgspec.structs.replace(first, name=f"{first.name}-{n}", epoch=first.epoch + n))
        for n in range(count)
    ]
    return replace(script, inputs=sorted(encoders + others, key=lambda each: each[0]))


class MediaCosts:
    """Times of encodings, and of transfers of embeddings."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[str, int, bool], int] = {}
        """Embeddings by worker, number, and whether they are pulled."""
        self._encoded: list[tuple[int, int]] = []
        self._pulled: list[tuple[int, int]] = []

    def expect(self, decision: Decision) -> bool:
        """True if it is a message of this kind, which a worker will answer."""
        message = decision.message
        if isinstance(decision, WorkerMessage) and isinstance(message, EncodeMedia):
            self._sizes[decision.worker, message.id, False] = message.item.length
            return True
        if isinstance(decision, WorkerMessage) and isinstance(message, Pull) and message.digest:
            self._sizes[decision.worker, message.id, True] = message.end
            return True
        return False

    def note(self, event: Event) -> bool:
        """True if it is such an answer."""
        if isinstance(event, MediaSettled):
            size = self._sizes.pop((event.worker, event.encoded.id, False), 0)
            took = event.encoded.duration_us
            self._encoded += [(size, took)] if size and took else []
            return True
        if isinstance(event, Transferred) and event.pulled.digest:
            size = self._sizes.pop((event.worker, event.pulled.id, True), 0)
            done = size and not event.pulled.reason
            self._pulled += [(size, event.pulled.duration_us)] if done else []
            return True
        return False

    def lines(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Seconds per item and per embedding: of encodings, and of transfers."""
        nothing = (0.0, 0.0)
        encode = fit(self._encoded) if self._encoded else nothing
        return encode, fit(self._pulled) if self._pulled else nothing


def _sizes(worker: str, plan: Plan) -> dict[tuple[str, int], int]:
    """Tokens of each step of a plan."""
    sizes = {(worker, plan.step): sum(unpack(plan.num_scheduled, "I"))}
    turns = unpack(plan.steps_per_row, "I")
    for turn in range(1, plan.num_steps):
        sizes[worker, plan.step + turn] = sum(number > turn for number in turns)
    return sizes


def _log(event: Arrived) -> list[int]:
    try:
        return unpack(event.submit.log).tolist()
    except ValueError:  # The state refuses it as well.
        return []


def fit(steps: list[tuple[int, int]]) -> tuple[float, float]:
    """(seconds per step, seconds per token) from (tokens, microseconds) of each step."""
    tokens, micros = np.array(steps, np.float64).T
    spread = float(tokens.var())
    slope = float(((tokens - tokens.mean()) * micros).mean()) / spread if spread else 0.0
    slope = max(0.0, slope)
    base = float(micros.mean() - slope * tokens.mean())
    return max(base, 1.0) / 1e6, slope / 1e6
