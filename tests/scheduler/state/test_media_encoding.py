"""Encode workers join, drain and leave beside the others, and end only their own requests."""

from __future__ import annotations

from baton.protocol import Blob, Media, Sampling
from baton_scheduler.events import WorkerAssigned, WorkerDraining
from baton_scheduler.observability.autoscaling import Targets, roles
from baton_scheduler.observability.stats import stats
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler_world import World


def test_encode_workers_are_in_statistics_and_in_no_placement() -> None:
    made = World()
    made.join_encoder()
    text = made.submit([1, 2, 3], Sampling(3, seed=1))
    made.tick()
    assert not made.state.fleet.open and text.end is None
    made.join("w", worker_info(encoder_layout="f32"))
    media = (Media(b"a" * 32, 0, 2, Blob("float32", (1,), bytes(4))),)
    image = made.submit([9, 9, 3], Sampling(3, seed=1), media=media)
    made.tick()
    told = stats(made.state, incarnation=1, uptime=1.0, dropped_frames=0)
    encoder = next(worker for worker in told.workers if worker.role == "encode")
    assert (encoder.running, encoder.pages_total, encoder.state) == (1, 0, "ready")
    made.finish()
    assert text.tokens == text.expected[0] and image.tokens == image.expected[0]
    told = stats(made.state, incarnation=1, uptime=1.0, dropped_frames=0)
    assert (told.media_encoded, told.media_pulled, told.media_shared) == (1, 1, 0)


def test_a_queue_of_images_asks_for_more_encode_workers() -> None:
    made = World()
    made.join("w", worker_info(encoder_layout="f32"))
    made.join_encoder()
    for number in range(8):
        media = (Media(bytes([number]) * 32, 0, 2, Blob("float32", (1,), bytes(4))),)
        made.submit([9, 9, number], Sampling(3, seed=1), media=media)
    made.tick()
    made.encode(seconds=10.0)
    [row] = [row for row in roles(made.state, Targets(ttft=2.0)) if row.role == "encode"]
    assert (row.ready, row.desired) == (1, 2) and row.queue_seconds == 70.0
    assert row.pressure["queue"] == 35.0


def test_a_draining_encode_worker_gets_nothing_new_and_keeps_its_role() -> None:
    made = World()
    made.join("w", worker_info(encoder_layout="f32"))
    made.join_encoder()
    made.apply(WorkerDraining("e"))
    made.apply(WorkerAssigned("e", "both"))
    media = (Media(b"a" * 32, 0, 2, Blob("float32", (1,), bytes(4))),)
    image = made.submit([9, 9, 3], Sampling(3, seed=1), media=media)
    made.finish()
    assert image.tokens == image.expected[0] and not made.encoded
    assert made.state.fleet.encoders["e"].info.role == "encode"
