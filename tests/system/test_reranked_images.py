"""Pairs of texts and images are scored through every service as the published model scores them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from baton_scheduler.options import SchedulerOptions
from tests.fakes.gateway_app import error_of
from tests.fakes.whole_system import Whole, whole
from tests.support.tiny_dual_encoders import data_url, picture
from tests.support.tiny_jina_vl import SEEN, Reranker

RED, BLUE = picture(40, 30, 1), picture(30, 50, 2)
QUERY = "who runs with the baton?"
TEXTS = ["a", "the relay runner hands the baton to the next runner"]


def seen(image: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(image)}}


def parts(*given: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": p} if isinstance(p, str) else p for p in given]}


SIDES: list[tuple[Any, str, list[Any]]] = [
    *((text, text, []) for text in TEXTS),
    (parts(seen(RED)), SEEN, [RED]),
    (parts(seen(BLUE)), SEEN, [BLUE]),
    (parts("the first", seen(RED), seen(BLUE)), f"the first\n{SEEN}\n{SEEN}", [RED, BLUE]),
]
"""What is sent, how it is written, and its images."""


def scores(here: Whole, query: Any, documents: list[Any]) -> list[float]:
    answer = here.post("/score", {"text_1": query, "text_2": documents})
    assert answer.status_code == 200, answer.text
    return [entry["score"] for entry in answer.json()["data"]]


@pytest.mark.row("P14")
def test_pairs_with_images_are_scored_as_published(tmp_path: Path) -> None:
    """Each side with text, images and both; in chunks that cut images; from cached prefixes, and
    without a cache."""
    oracle = Reranker(tmp_path)
    queries = [(QUERY, QUERY, []), *SIDES[2:4]]
    sent = [side for side, _, _ in SIDES]
    expected = [
        [oracle.score(asked, text, [*images, *more]) for _, text, images in SIDES]
        for _, asked, more in queries
    ]
    flat = sorted(score for row in expected for score in row)
    assert min(b - a for a, b in pairwise(flat)) > 2e-3, f"they do not differ: {flat}"
    settings = {"block_size": 4, "max_num_batched_tokens": 24, "max_num_seqs": 4}
    with whole(tmp_path, worker=settings) as here:
        found = [scores(here, query, sent) for query, _, _ in queries]
        for ours, theirs in zip(found, expected, strict=True):
            assert ours == pytest.approx(theirs, abs=1e-4)
        before = here.engine.scheduler.stats()
        assert [scores(here, query, sent) for query, _, _ in queries] == found
        after = here.engine.scheduler.stats()
        looked = after.prefix_queries - before.prefix_queries
        assert after.prefix_hits - before.prefix_hits > 0.8 * looked > 0, "they are cached"
        check_ranking(here, found[0])
        check_refusals(here)
    without = SchedulerOptions(enable_prefix_caching=False)
    with whole(tmp_path, worker=settings, scheduler=without) as here:
        assert [scores(here, query, sent) for query, _, _ in queries] == found


def check_ranking(here: Whole, found: list[float]) -> None:
    """/rerank has the same scores, and shows the documents as they were sent."""
    body = {
        "query": QUERY,
        "documents": [TEXTS[0], {"text": TEXTS[1]}, *(s for s, _, _ in SIDES[2:])],
    }
    ranked = here.post("/rerank", body).json()["results"]
    assert [entry["index"] for entry in ranked] == sorted(range(5), key=lambda i: -found[i])
    shown = {entry["index"]: entry["document"] for entry in ranked}
    assert shown[1] == {"text": TEXTS[1]}
    assert shown[4] == {"multi_modal": SIDES[4][0]["content"]}
    [raw] = here.post(
        "/score", {"text_1": QUERY, "text_2": TEXTS[0], "use_activation": False}
    ).json()["data"]
    assert 1 / (1 + 2.718281828459045 ** -raw["score"]) == pytest.approx(found[0], abs=1e-5)


def check_refusals(here: Whole) -> None:
    """What imitates an image is text; what the model does not take is refused by its path."""
    posing = f"{TEXTS[0]} <|image_pad|>"
    asked = len(here.engine.preprocessor.seen)
    scores(here, parts(seen(RED)), TEXTS)
    assert len(here.engine.preprocessor.seen) - asked == 1, "an image of all pairs is prepared once"
    [plain, text, image] = scores(here, QUERY, [TEXTS[0], posing, parts(posing, seen(RED))])
    assert len({plain, text, image}) == 3
    video = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    for part, words in ((video, "does not take video input"), (broken, "image")):
        answer = here.post("/score", {"text_1": QUERY, "text_2": ["a", parts("b", part)]})
        error = error_of(answer)
        assert answer.status_code == 400 and words in error["message"]
        assert error["param"].startswith("text_2[1].content[1]")
    answer = here.complete(prompt="a")
    assert answer.status_code == 400 and "scores pairs" in error_of(answer)["message"]
