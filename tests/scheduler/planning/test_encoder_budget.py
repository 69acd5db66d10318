"""Pictures share steps with texts, a bounded number at a time."""

from __future__ import annotations

import msgspec
import pytest

from baton.protocol import Blob, Media, Plan, Sampling
from baton.protocol.token_columns import unpack
from baton_scheduler.options import SchedulerOptions
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler_world import World

LENGTH = 10


def image(number: int, start: int) -> Media:
    return Media(bytes([number]) * 32, start, LENGTH, Blob("float32", (1,), bytes(4)))


def world(num_tokens: int) -> World:
    made = World(SchedulerOptions(max_num_encoder_input_tokens=num_tokens))
    made.join("w", worker_info(max_num_batched_tokens=64))
    return made


def chunks(plan: Plan) -> dict[int, int]:
    return dict(zip(unpack(plan.rows, "I"), unpack(plan.num_scheduled, "I"), strict=True))


@pytest.mark.row("F20.02")
@pytest.mark.parametrize(
    ("budget", "expected"),
    [(1, [15, 13, 11]), (10, [15, 13, 11]), (20, [28, 11]), (0, [39])],
)
def test_a_chunk_ends_before_an_image_that_is_too_much_for_its_step(
    budget: int, expected: list[int]
) -> None:
    """Three images of ten embeddings in a prompt of 39; one that is larger than the budget has a
    step of its own."""
    made = world(budget)
    prompt = list(range(100, 139))
    media = (image(1, 2), image(2, 15), image(3, 28))
    request = made.submit(prompt, Sampling(2, seed=1), media=media)
    made.finish()
    assert request.tokens == request.expected[0]
    assert [chunks(plan)[0] for plan in made.plans[: len(expected)]] == expected


def test_an_image_that_every_later_token_attends_to_is_encoded_wherever_it_is_cached() -> None:
    """One token stands for it; the budget counts its states, and its pixels go to any worker."""
    made = world(50)
    lasting = Media(b"a" * 32, 1, 1, Blob("float32", (1,), bytes(4)), num_states=40)
    other = msgspec.structs.replace(lasting, digest=b"b" * 32, start=3)
    prompt, sampling = list(range(100, 140)), Sampling(2, seed=1)
    made.submit(prompt, sampling, media=(lasting, other))
    made.finish()
    assert [chunks(plan)[0] for plan in made.plans[:2]] == [3, 37]
    assert lasting.is_needed(9) and not image(1, 1).is_needed(11) and lasting.num_encoded == 40
    made.submit(prompt, sampling, media=(lasting, other))
    made.finish()
    new = [new for plan in made.plans for new in plan.new_sequences][-1]
    assert new.num_computed > 4 and all(item.pixels.data for item in new.media)


def test_texts_run_in_every_step_of_a_storm_of_images() -> None:
    made = world(LENGTH)
    text = made.submit([1, 2, 3], Sampling(12, seed=1))
    made.round()
    images = [
        made.submit([*[9] * LENGTH, n], Sampling(2, seed=n), media=(image(n, 0),)) for n in range(4)
    ]
    made.finish()
    assert all(one.tokens == one.expected[0] for one in (text, *images))
    starts = [i for i, plan in enumerate(made.plans) for new in plan.new_sequences if new.media]
    assert len(set(starts)) == 4, "one image a step"
    decoded = [0 in chunks(plan) for plan in made.plans[: starts[-1] + 1]]
    assert all(decoded), "the text decodes beside each of them"


def test_an_image_that_was_seen_takes_nothing() -> None:
    made = world(LENGTH)
    for tenant in ("", ""):
        request = made.submit([7, *[9] * LENGTH, 5], Sampling(1, seed=1), media=(image(1, 1),))
        made.finish()
        assert request.tokens == request.expected[0], tenant
    media = (image(1, 1), image(2, 12))
    both = made.submit([8, *[9] * LENGTH, 5, *[9] * LENGTH, 6], Sampling(1, seed=1), media=media)
    before = len(made.plans)
    made.finish()
    assert both.tokens == both.expected[0]
    assert chunks(made.plans[before])[0] == 23, "the first image costs no budget"
