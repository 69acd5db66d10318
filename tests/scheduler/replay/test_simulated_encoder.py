"""Recordings with encode workers replay, and are simulated with their costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.protocol import Blob, EncodeMedia, Media, Sampling
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.replay.recorder import load, replay
from baton_scheduler.replay.script import Script, learn
from baton_scheduler.replay.simulated_encoder import SimulatedEncoder
from baton_scheduler.replay.simulator import Simulation
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler_world import Recorded


def image(number: int) -> Media:
    blob = Blob("float32", (1,), b"PIXL")
    return Media(bytes([number]) * 32, 9 * number, 8, blob)


def first_token(path: Path, encoders: int) -> float:
    """Simulated seconds to the first token of a request with four images."""
    world = Recorded(path, SchedulerOptions(), 10**8)
    world.join("w", worker_info(encoder_layout="f32"))
    for number in range(encoders):
        world.join_encoder(f"e{number}")
    media = tuple(map(image, range(4)))
    request = world.submit(list(range(40)), Sampling(2, seed=1), media=media)
    world.finish()
    world.recorder.close()
    assert request.tokens == request.expected[0]
    assert replay(path).difference is None and b"PIXL" not in path.read_bytes()
    limits, events = load(path)
    script = learn(limits, events)
    assert script.encode == (0.1, 0.0) and script.pull_media == (0.001, 0.0)
    [(_, seconds)] = Simulation(limits, script).run().values()
    return seconds


@pytest.mark.row("F20.02")
def test_two_encode_workers_bring_the_first_token_of_four_images_sooner(tmp_path: Path) -> None:
    one, two = (first_token(tmp_path / str(number), number) for number in (1, 2))
    assert 0.4 <= one < 0.5 and two <= 0.6 * one


def test_orders_are_answered_one_after_the_other() -> None:
    encoder, script = SimulatedEncoder(3), Script(encode=(0.1, 0.01))
    order = EncodeMedia(3, 1, bytes(16), image(1))
    ends = [encoder.answer(order, script, now)[0] for now in (1.0, 1.0, 5.0)]
    assert ends == pytest.approx([1.18, 1.36, 5.18])
    assert encoder.answer(order, script, 9.0)[1].num_tokens == 8
