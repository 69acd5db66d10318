"""Flight recorder: writes every event to a file, and replays the file to the same decisions.

The file is a sequence of frames (`baton.net.frames`) of MessagePack: one `Header`, then one `Entry`
per event. After each Tick the entry contains a digest of the state and of all decisions so far,
which `replay` compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from baton.errors import SettingsError
from baton.logs import logger
from baton.net import frames
from baton_scheduler.events import Decision, Event, Tick
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.replay.pixels import decision_without_pixels, event_without_pixels
from baton_scheduler.state import State

FORMAT = 8
_MAX_ENTRY = 128 * 1024 * 1024
"""Maximum entry size in bytes, above that of any wire frame; a longer length means a damaged
file."""

log = logger(__name__)


class Header(msgspec.Struct, frozen=True):
    """First frame: the configuration of the state machine."""

    format: int
    limits: SchedulerOptions


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One event; `digest` is empty unless it is a Tick."""

    event: Event
    digest: bytes = b""


class Verdict(NamedTuple):
    """Result of a replay."""

    num_events: int
    num_ticks: int
    difference: int | None
    """Number of the first event (from 1) whose digest differs; None if all agree."""
    truncated: bool
    """The file ends inside a frame, as after a crash; all complete frames were compared."""


class Trace:
    """Running digest of decisions, combined with the state's digest after each Tick."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self._encoder = msgspec.msgpack.Encoder()

    def update(self, event: Event, decisions: Iterable[Decision], state: State) -> bytes:
        """Add decisions. Returns the digest if the event is a Tick, else empty bytes."""
        for decision in decisions:
            self._hash.update(self._encoder.encode(decision_without_pixels(decision)))
        if not isinstance(event, Tick):
            return b""
        self._hash.update(state.digest())
        return self._hash.digest()


class Recorder:
    """Writes a recording of up to `max_bytes`. A full disk ends the recording, not the service."""

    def __init__(self, path: Path, limits: SchedulerOptions, max_bytes: int) -> None:
        try:
            self._file: BinaryIO | None = path.open("wb")
        except OSError as error:
            raise SettingsError(f"Cannot record to {path}: {error.strerror}.") from error
        self._room = max_bytes
        self._trace = Trace()
        self._encoder = msgspec.msgpack.Encoder()
        self._write(Header(FORMAT, limits))

    def note(self, event: Event, decisions: Iterable[Decision], state: State) -> None:
        """Write one event, after the state has applied it."""
        if self._file is not None:
            digest = self._trace.update(event, decisions, state)
            self._write(Entry(event_without_pixels(event), digest))

    def flush(self) -> None:
        """Flush to the operating system."""
        if self._file is not None:
            self._guard(self._file.flush)

    def close(self) -> None:
        """Finish the file."""
        if self._file is not None:
            self._guard(self._file.close)
            self._file = None

    def _write(self, record: Header | Entry) -> None:
        data = frames.pack(self._encoder.encode(record))
        self._room -= len(data)
        if self._room < 0:
            log.warning("the recording has reached its size limit and ends here")
            self.close()
        elif self._file is not None:
            file = self._file
            self._guard(lambda: file.write(data))

    def _guard(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            log.error("the recording ends here: %s", error.strerror)
            self._file = None


def _frames(file: BinaryIO) -> Iterator[bytes | None]:
    """The frames of a recording; None last when the file ends inside one."""
    try:
        while (data := frames.read(file, _MAX_ENTRY)) is not None:
            yield data
    except frames.TruncatedFrame:
        yield None
    except frames.OversizedFrame as error:
        raise SettingsError("This is not a recording, or it is damaged.") from error


@contextmanager
def _reading(path: Path) -> Iterator[tuple[Header, Iterator[bytes | None]]]:
    """Header and entries of a recording. Raises `SettingsError` if it is no recording of this
    format."""
    try:
        with path.open("rb") as file:
            entries = _frames(file)
            yield _header(entries), entries
    except OSError as error:
        raise SettingsError(f"Cannot read {path}: {error.strerror}.") from error
    except msgspec.MsgspecError as error:
        raise SettingsError(f"{path} is not a recording, or it is damaged: {error}") from error


def _header(entries: Iterator[bytes | None]) -> Header:
    first = next(entries, None)
    if first is None:
        raise SettingsError("The recording is empty.")
    header = msgspec.msgpack.decode(first, type=Header)
    if header.format != FORMAT:
        raise SettingsError(f"The recording has format {header.format}, this version {FORMAT}.")
    return header


def load(path: Path) -> tuple[SchedulerOptions, list[Event]]:
    """Options and events of a recording; an incomplete last frame is ignored.

    Raises `SettingsError` if the file cannot be read or is no recording of this format.
    """
    with _reading(path) as (header, entries):
        decoder = msgspec.msgpack.Decoder(Entry)
        return header.limits, [decoder.decode(entry).event for entry in entries if entry]


def replay(path: Path) -> Verdict:
    """Apply the events of a recording to a new state and compare digests.

    Raises `SettingsError` if the file cannot be read or is no recording of this format.
    """
    with _reading(path) as (header, entries):
        return _replay(header, entries)


def _replay(header: Header, entries: Iterator[bytes | None]) -> Verdict:
    state, trace, decoder = State(header.limits), Trace(), msgspec.msgpack.Decoder(Entry)
    num_events = num_ticks = 0
    for data in entries:
        if data is None:
            return Verdict(num_events, num_ticks, None, truncated=True)
        entry = decoder.decode(data)
        num_events += 1
        num_ticks += isinstance(entry.event, Tick)
        digest = trace.update(entry.event, state.apply(entry.event), state)
        if digest != entry.digest:
            return Verdict(num_events, num_ticks, num_events, truncated=False)
    return Verdict(num_events, num_ticks, None, truncated=False)
