"""Models that see and are made by the tools of this repository are served with the numbers of
transformers."""

from __future__ import annotations

import io
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from PIL import Image, ImageChops, ImageDraw

from baton_ops.bench.images import image
from tests.fakes.whole_system import Whole, whole
from tests.support.tiny_dual_encoders import data_url
from tools import make_random_vlm, train_tiny_vlm
from tools.easy_vqa import SIDE, Lesson, Talk, Turn, moved
from tools.tiny_vlm_recipes import RECIPES
from tools.tiny_vlm_student import Student, Views
from tools.train_tiny_vlm import embed, train, train_tower

COLOURS = ("red", "blue", "green")
BACKGROUND = (240, 230, 250)


def drawn(colour: str, size: int) -> bytes:
    """A PNG file of a square."""
    picture, file = Image.new("RGB", (SIDE, SIDE), BACKGROUND), io.BytesIO()
    ImageDraw.Draw(picture).rectangle((3, 5, 3 + size, 5 + size), fill=colour)
    picture.save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def lesson() -> Lesson:
    files = {10 + n: drawn(COLOURS[n % 3], 8 + 3 * n) for n in range(6)}
    shape = Turn("shape", "what shape is present?", "rectangle")
    colours = {n: Turn("colour", "what color is the shape?", COLOURS[(n - 10) % 3]) for n in files}
    return Lesson(files, {n: [colour, shape] for n, colour in colours.items()})


def ask(here: Whole, urls: list[str], question: str, count: int) -> dict[str, Any]:
    seen = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    messages = [{"role": "user", "content": [*seen, {"type": "text", "text": question}]}]
    body = {"model": here.model, "messages": messages, "temperature": 0, "max_tokens": count}
    body |= {"logprobs": True, "ignore_eos": True, "return_token_ids": True}
    answer = here.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def expected(student: Student, lesson: Lesson, talk: Talk) -> tuple[int, float]:
    """The most probable token behind the question, and its log-probability."""
    pixels = student.pixels([lesson.picture(number) for number in talk.pictures])
    with torch.inference_mode():
        batch = student.batch([talk], student.features(pixels))
        place = int((batch.labels[0] != -100).nonzero()[0])
        scores = student.logits(batch)[0, place].log_softmax(-1)
    return int(scores.argmax()), float(scores.max())


@pytest.mark.row("F01.01")
def test_a_student_is_served_as_it_was_taught(lesson: Lesson, tmp_path: Path) -> None:
    for name, recipe in RECIPES.items():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            student = Student(recipe, lesson)
            views = Views.of_lesson(student, lesson, 2)
            train_tower(student, lesson, views, 2, pictures=8)
            embeddings = embed(student, views)
            taught = [parameter.clone() for parameter in student.tower()]
            losses = train(student, lesson, embeddings, 8, pictures=8)
        assert sum(losses[-3:]) < sum(losses[:3]), name
        assert all(map(torch.equal, taught, student.tower())), "the tower learns first"
        assert len(train_tiny_vlm.save(student, tmp_path / name)) == 64
        [talk] = lesson.questions_of_two(1, Random(0))
        urls = [data_url(lesson.picture(number)) for number in talk.pictures]
        with whole(tmp_path / name) as here:
            choice = ask(here, urls, talk.turns[0].question, 1)
        token, score = expected(student, lesson, talk)
        assert choice["token_ids"] == [token], name
        assert choice["logprobs"]["content"][0]["logprob"] == pytest.approx(score, abs=2e-3), name


def test_questions_about_two_pictures_have_different_answers(lesson: Lesson) -> None:
    for talk in lesson.questions_of_two(40, Random(3)):
        [turn] = talk.turns
        place = "second" in turn.question
        answers = [lesson.turns[number][0].answer for number in talk.pictures]
        assert answers[0] != answers[1] and turn.answer == answers[place]


def test_a_moved_shape_is_whole(lesson: Lesson) -> None:
    for number in lesson.files:
        before = lesson.picture(number)
        after = moved(before, Random(number))
        assert sorted(after.getcolors()) == sorted(before.getcolors())  # type: ignore[arg-type]
        assert extent(after) == extent(before)


def extent(picture: Image.Image) -> tuple[int, int]:
    """Width and height of what is not background."""
    background = Image.new("RGB", picture.size, BACKGROUND)
    box = ImageChops.difference(picture, background).getbbox()
    assert box is not None
    return box[2] - box[0], box[3] - box[1]


def test_every_token_of_a_random_model_shows(tmp_path: Path) -> None:
    for name in make_random_vlm.ARCHITECTURES:
        make_random_vlm.save(tmp_path / name, name, make_random_vlm.Sizes(64, 1, 64, 1))
        with whole(tmp_path / name) as here:
            choice = ask(here, [image(56, 56, 1)], "what is it?", 24)
        assert len(choice["token_ids"]) == 24
        assert all(entry["token"] for entry in choice["logprobs"]["content"])
        assert "\ufffd" not in choice["message"]["content"], name
