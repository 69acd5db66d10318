"""Recordings hold no pixels, and replay to the same decisions."""

from __future__ import annotations

from pathlib import Path

from baton.protocol import Blob, Media, Sampling
from baton.protocol.media import MAX_PIXEL_BYTES
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.replay.recorder import replay
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler_world import Recorded, World

PIXELS = b"pixels of an image" * 1000


def test_pixels_reach_the_worker_and_no_recording(tmp_path: Path) -> None:
    world = Recorded(tmp_path / "run", SchedulerOptions(max_num_batched_tokens=9), 10**8)
    world.join("w", worker_info(num_pages=8, page_size=2, max_num_seqs=4))
    item = Media(b"d" * 32, 1, 2, Blob("float32", (len(PIXELS) // 4,), PIXELS))
    world.submit([5, 9, 9, 5], Sampling(3, seed=1), media=(item,))
    world.submit([5], Sampling(3, seed=1))
    world.finish()
    world.recorder.close()
    assert replay(tmp_path / "run").difference is None
    recorded = (tmp_path / "run").read_bytes()
    assert b"d" * 32 in recorded and PIXELS[:100] not in recorded


def test_a_plan_carries_no_more_pixels_than_a_frame_holds() -> None:
    """Two of three enter together, and the third one with the next plan."""
    world = World(SchedulerOptions())
    world.join("w", worker_info(num_pages=32, page_size=2, max_num_seqs=8))
    shape = (MAX_PIXEL_BYTES // 8,)
    for number in range(3):
        item = Media(b"%32d" % number, 1, 2, Blob("float32", shape, b""))
        world.submit([5, 9, 9, 5], Sampling(3, seed=1), media=(item,))
    state, worker = world.state, world.state.fleet.get("w")
    world.round()
    assert worker is not None and len(worker.batch) == 2 and len(state.queue) == 1
    world.finish()
    assert state.idle
