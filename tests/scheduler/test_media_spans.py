"""Where steps may end within a prompt with spans, and plans that keep to it."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest

from baton.protocol import Blob, Media, Sampling
from baton_scheduler.media_spans import MediaSpans
from tests.fakes.hash_worker import expected_tokens, worker_info
from tests.support.scheduler.one_worker import decoding, rows, world


def image(start: int, length: int, *spans: tuple[int, int]) -> Media:
    return Media(b"d" * 32, start, length, Blob("float32", (0,), b""), spans=spans)


def test_a_step_ends_at_no_place_within_a_span() -> None:
    spans = MediaSpans((image(2, 9, (1, 3), (5, 3)), image(20, 4, (0, 4))))
    within = {*range(4, 6), *range(8, 10), *range(21, 24)}
    assert spans.longest == 4
    for position, count in itertools.product(range(30), range(1, 30)):
        end = next(e for e in range(position + count, -1, -1) if e not in within)
        assert spans.cut(position, count) == max(0, end - position), (position, count)
        least = next(e for e in range(position + 1, 40) if e not in within)
        assert spans.least(position) == least - position
    assert MediaSpans(()).cut(3, 5) == 5 and MediaSpans(()).least(3) == 1


@pytest.mark.row("F15.04", "V11")
@pytest.mark.parametrize("windows", [(0,), (0, 6)])
def test_chunks_never_end_within_a_span(windows: tuple[int, ...]) -> None:
    """Beside decode rows, in any budget that the longest span fits in, with few pages, so that
    sequences are preempted, and behind cached prefixes of any length."""
    chance = random.Random(5)
    for _ in range(25):
        budget = chance.randrange(6, 14)
        info = worker_info(max_num_batched_tokens=budget, num_pages=40, page_size=2, max_num_seqs=5)
        here = world(msgspec.structs.replace(info, windows=windows))
        asked, length = [], chance.randrange(12, 30)
        prompt = [chance.randrange(3) for _ in range(length)]
        media = (image(1, 10, (0, chance.randrange(1, 7)), (7, 3)),)
        for _ in range(6):
            own = [*prompt[: chance.randrange(12, length + 1)], chance.randrange(9)]
            sampling = Sampling(chance.randrange(1, 9), seed=chance.randrange(99))
            asked.append(here.submit(own, sampling, media=media))
            here.round()
        here.finish()
        spans = MediaSpans(media)
        for plan in here.plans:
            for start, count, _ in rows(plan).values():
                assert spans.cut(start, count) == count, (start, count)
        for request in asked:
            expected = expected_tokens(request.prompt, request.sampling)
            assert (request.tokens, request.end) == expected
        assert not here.state.num_running


def test_decode_rows_give_way_to_an_image_that_needs_most_of_a_step() -> None:
    here = world(worker_info(max_num_batched_tokens=8, max_num_seqs=8))
    decoding(here, *[30] * 5)
    request = here.submit(list(range(10)), Sampling(2, seed=1), media=(image(1, 7, (0, 7)),))
    here.finish()
    first, *_ = [row for plan in here.plans for row in rows(plan).values() if row[1] == 7]
    assert first == (1, 7, 0)
    assert request.tokens == expected_tokens(request.prompt, request.sampling)[0]


def test_a_span_that_no_step_has_room_for_is_refused() -> None:
    here = world(worker_info(max_num_batched_tokens=4))
    request = here.submit(list(range(10)), Sampling(2), media=(image(1, 7, (0, 6)),))
    here.tick()
    assert request.failed is not None and request.failed.status == 400
    assert "--max-num-batched-tokens 6" in request.failed.message


@pytest.mark.parametrize("spans", [((3, 2), (0, 2)), ((0, 0),), ((4, 5),), ((0, 9),)])
def test_spans_that_make_no_sense(spans: tuple[tuple[int, int], ...]) -> None:
    here = world(worker_info())
    request = here.submit(list(range(8)), Sampling(2), media=(image(0, 8, *spans),))
    assert request.failed is not None


def test_a_span_may_be_a_whole_prompt_whose_last_token_runs() -> None:
    """It goes on behind its image, and not behind one that has a text before it."""
    here = world(worker_info(max_num_batched_tokens=16))
    for start, generated, fits in ((0, 2, True), (0, 0, False), (1, 2, False)):
        given = (image(start, 5, (0, 10 - start)),)
        request = here.submit(list(range(10)), Sampling(generated, seed=1), media=given)
        assert (request.failed is None) == fits, (start, generated)
    here.finish()
    assert next(count for plan in here.plans for _, count, _ in rows(plan).values()) == 10
