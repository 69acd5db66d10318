"""Recordings with encode workers replay, and are simulated with their costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.errors import SettingsError
from baton.protocol import Blob, EncodeMedia, Media, Sampling
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.replay.recorder import load, replay
from baton_scheduler.replay.script import Script, build_script
from baton_scheduler.replay.simulated_encoder import SimulatedEncoder
from baton_scheduler.replay.simulator import compare
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler_world import Recorded


def image(number: int) -> Media:
    blob = Blob("float32", (1,), b"PIXL")
    return Media(bytes([number]) * 32, 9 * number, 8, blob)


def run(path: Path, encoders: int) -> None:
    """Record a request with four images."""
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


@pytest.mark.row("F20.02")
@pytest.mark.parametrize(("recorded", "other"), [(1, 2), (2, 1)])
def test_two_encode_workers_bring_the_first_token_of_four_images_sooner(
    tmp_path: Path, recorded: int, other: int
) -> None:
    run(tmp_path / "run", recorded)
    script = build_script(*load(tmp_path / "run"))
    assert script.encode == (0.1, 0.0) and script.pull_media == (0.001, 0.0)
    found = compare(tmp_path / "run", encode_workers=other)
    seconds = dict(zip((recorded, other), (wait for [wait] in found.waits), strict=True))
    assert 0.4 <= seconds[1] < 0.5 and 0.2 <= seconds[2] <= 0.6 * seconds[1]
    assert found.names == ("fair, cost", f"fair, cost, {other} to encode")


def test_more_encode_workers_need_one_in_the_recording(tmp_path: Path) -> None:
    run(tmp_path / "run", 0)
    with pytest.raises(SettingsError, match="No encode worker joins"):
        compare(tmp_path / "run", encode_workers=2)


def test_orders_are_answered_one_after_the_other() -> None:
    encoder, script = SimulatedEncoder(3), Script(encode=(0.1, 0.01))
    order = EncodeMedia(3, 1, bytes(16), image(1))
    ends = [encoder.answer(order, script, now)[0] for now in (1.0, 1.0, 5.0)]
    assert ends == pytest.approx([1.18, 1.36, 5.18])
    assert encoder.answer(order, script, 9.0)[1].num_tokens == 8
