"""A recorded run comes out the same again, and a changed one does not."""

from __future__ import annotations

import struct
from pathlib import Path

import msgspec
import pytest

from baton.errors import SettingsError
from baton.protocol import Sampling
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.replay.recorder import (
    FORMAT,
    Entry,
    Header,
    Recorder,
    replay,
)
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler_world import Recorded


def record(path: Path, max_bytes: int = 10**8) -> int:
    """A busy little run with a loss and preemptions. Returns how many ticks it had."""
    world = Recorded(
        path, SchedulerOptions(max_num_batched_tokens=9, scheduling_policy="priority"), max_bytes
    )
    world.join("w", worker_info(num_pages=8, page_size=2, max_num_seqs=4))
    for number in range(6):
        world.submit([number] * 3, Sampling(8, seed=number))
    for _ in range(5):
        world.round()
    world.lose_worker()
    world.join("w")
    world.finish()
    world.recorder.close()
    return round(world.now / 0.01)


def frames(path: Path) -> list[bytes]:
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack_from("<I", data)
        found.append(data[4 : 4 + length])
        data = data[4 + length :]
    return found


def write(path: Path, parts: list[bytes]) -> None:
    path.write_bytes(b"".join(struct.pack("<I", len(part)) + part for part in parts))


def test_every_decision_is_reproduced(tmp_path: Path) -> None:
    path = tmp_path / "run"
    ticks = record(path)
    verdict = replay(path)
    assert verdict == (len(frames(path)) - 1, ticks, None, False)


def test_the_first_difference_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run"
    record(path)
    parts = frames(path)
    at = next(
        i
        for i, part in enumerate(parts[9:], start=9)
        if msgspec.msgpack.decode(part, type=Entry).digest
    )
    entry = msgspec.msgpack.decode(parts[at], type=Entry)
    parts[at] = msgspec.msgpack.encode(msgspec.structs.replace(entry, digest=b"another"))
    write(path, parts)
    assert replay(path).difference == at


def test_other_limits_decide_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "run"
    record(path)
    parts = frames(path)
    parts[0] = msgspec.msgpack.encode(
        Header(FORMAT, SchedulerOptions(max_num_batched_tokens=8, scheduling_policy="priority"))
    )
    write(path, parts)
    assert replay(path).difference is not None


def test_a_torn_end_is_told_and_what_came_before_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "run"
    record(path)
    whole = replay(path)
    path.write_bytes(path.read_bytes()[:-3])
    torn = replay(path)
    assert torn == (whole.num_events - 1, torn.num_ticks, None, True)


def test_a_recording_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "run"
    record(path, max_bytes=2000)
    assert path.stat().st_size <= 2000
    verdict = replay(path)
    assert verdict.num_events > 0 and verdict.difference is None


@pytest.mark.parametrize("content", [b"", b"\xff\xff\xff\xff....", b"\x04\0\0\0junk"])
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run"
    path.write_bytes(content)
    with pytest.raises(SettingsError):
        replay(path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    write(path, [msgspec.msgpack.encode(Header(99, SchedulerOptions()))])
    with pytest.raises(SettingsError, match="format 99"):
        replay(path)


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="Cannot record"):
        Recorder(tmp_path / "none" / "run", SchedulerOptions(), 1000)
