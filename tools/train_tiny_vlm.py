"""Trains tiny vision-language models to tell colours and shapes, on a CPU: LLaVA with SigLIP,
SmolVLM with tiles, and Qwen2-VL with positions on three axes.

    python -m tools.train_tiny_vlm llava smolvlm qwen2_vl

The questions are those of `tools.easy_vqa`, and others about the first or the second of two
pictures. The tower learns first, with a linear classifier of colours and one of shapes in place of
the language model; then that learns to answer, by the embeddings that the tower makes. Data and
weights go to the cache of models (`BATON_CACHE_DIR`), where `tests/system/test_trained_sight.py`
looks for them. The same arguments give the same bits on the same machine and libraries.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton.settings import Settings
from tools import easy_vqa
from tools.arguments import positive_int
from tools.byte_tokenizer import save_tokenizer
from tools.easy_vqa import About, Lesson, Talk
from tools.tiny_vlm_recipes import END, PAD, RECIPES
from tools.tiny_vlm_student import IGNORED, Student, Views

_RATE, _WARM, _DECAY = 3e-3, 30, 0.05
_PICTURES = 64
"""Of a batch."""
_OF_TWO = 0.6
"""Share of batches about two pictures."""
_VIEWS = 4
"""Places in which the shape of every picture is seen."""
_DEVIATION = 0.3
"""Of the embeddings of pictures. What a layer adds to far larger ones is lost, and with it which of
two pictures they belong to."""
_ABOUT: tuple[About, ...] = ("colour", "shape")


def home() -> Path:
    """Folder of the data set and of one checkpoint per recipe."""
    return Settings().cache_dir / "tiny-vlm"


class Optimizer:
    """AdamW whose rate rises over some steps and falls along a cosine."""

    def __init__(self, parameters: Sequence[nn.Parameter], steps: int) -> None:
        self._parameters, self._step, self._steps = parameters, 0, steps
        self._adam = torch.optim.AdamW(parameters, betas=(0.9, 0.98), weight_decay=_DECAY)

    def step(self, loss: Tensor) -> float:
        """One step down; returns the loss."""
        rate = _RATE * min(1.0, (self._step + 1) / _WARM)
        rate *= (1.02 + math.cos(math.pi * self._step / self._steps)) / 2.02
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._adam.step()
        self._step += 1
        return float(loss.detach())


class Labels:
    """The answers of a lesson about one thing, as numbers."""

    def __init__(self, lesson: Lesson, about: About) -> None:
        self._known = {
            number: turn.answer
            for number, turns in lesson.turns.items()
            for turn in turns
            if turn.about == about
        }
        self.answers = sorted(set(self._known.values()))
        self._places = {answer: place for place, answer in enumerate(self.answers)}

    def of(self, numbers: Sequence[int]) -> Tensor:
        """int64 [N], `IGNORED` where nothing is known of a picture."""
        known = (self._known.get(number, "") for number in numbers)
        return torch.tensor([self._places.get(answer, IGNORED) for answer in known])


def train_tower(
    student: Student, lesson: Lesson, views: Views, steps: int, pictures: int = _PICTURES
) -> list[float]:
    """The loss of every step of the tower and two classifiers of its mean embedding."""
    numbers, chance = list(lesson.turns), Random(0)
    labels = {about: Labels(lesson, about) for about in _ABOUT}
    width = student.model.config.text_config.hidden_size
    heads = nn.ModuleDict({a: nn.Linear(width, len(labels[a].answers)) for a in _ABOUT})
    optimizer = Optimizer([*student.tower(), *heads.parameters()], steps)
    losses = list[float]()
    for _ in range(steps):
        shown = chance.choices(numbers, k=pictures)
        seen = student.features(views.of(shown, chance)).mean(1)
        seen = F.rms_norm(seen, seen.shape[-1:])
        loss = sum(F.cross_entropy(heads[a](seen), labels[a].of(shown)) for a in _ABOUT)
        losses.append(optimizer.step(torch.as_tensor(loss)))
    return losses


def embed(student: Student, views: Views) -> Views:
    """The embeddings that the tower makes of views, scaled to about those of words."""
    embeddings = views.embedded(student)
    factor = _DEVIATION / embeddings.deviation()
    student.scale_features(factor)
    return embeddings.scaled(factor)


def train(
    student: Student, lesson: Lesson, views: Views, steps: int, pictures: int = _PICTURES
) -> list[float]:
    """The loss of every step of the language model, which is shown embeddings."""
    chance, losses = Random(0), list[float]()
    fixed = {id(parameter) for parameter in student.tower()}
    learning = [p for p in student.model.parameters() if id(p) not in fixed]
    optimizer = Optimizer(learning, steps)
    student.model.train()
    for talks in lessons(lesson, steps, pictures, chance):
        shown = [number for talk in talks for number in talk.pictures]
        batch = student.batch(talks, views.of(shown, chance))
        loss = F.cross_entropy(student.logits(batch).flatten(0, 1), batch.wanted.flatten())
        losses.append(optimizer.step(loss))
    student.model.eval()
    return losses


def lessons(lesson: Lesson, steps: int, pictures: int, chance: Random) -> Iterator[list[Talk]]:
    """The conversations of every step."""
    for _ in range(steps):
        if chance.random() < _OF_TWO:
            talks = [lesson.talk_of_two(chance) for _ in range(pictures // 2)]
            yield [t._replace(turns=tuple(chance.sample(t.turns, len(t.turns)))) for t in talks]
        else:
            yield [lesson.talk(chance) for _ in range(pictures)]


@torch.inference_mode()
def accuracy(student: Student, lesson: Lesson, talks: Sequence[Talk]) -> dict[str, float]:
    """Share of right answers by what is asked about."""
    seen = Views.of_lesson(student, lesson, 1).embedded(student)
    right, asked = Counter[str](), Counter[str]()
    for first in range(0, len(talks), _PICTURES):
        some = talks[first : first + _PICTURES]
        shown = [number for talk in some for number in talk.pictures]
        batch = student.batch(some, seen.of(shown, Random(0)))
        best = student.logits(batch).argmax(-1)
        answered = ((best == batch.wanted) | (batch.wanted == IGNORED)).all(1)
        for talk, good in zip(some, answered.tolist(), strict=True):
            right[talk.turns[-1].about] += good
            asked[talk.turns[-1].about] += 1
    return {about: right[about] / asked[about] for about in asked}


def save(student: Student, folder: Path) -> str:
    """Write all that is needed to serve it; returns the SHA-256 of its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    student.model.save_pretrained(folder)
    names = {"chat_template": student.recipe.chat_template, "eos_token": END, "pad_token": PAD}
    save_tokenizer(student.tokenizer, folder, **names)
    (folder / "preprocessor_config.json").write_text(json.dumps(student.recipe.processor, indent=1))
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def _shown(shares: dict[str, float]) -> str:
    return ", ".join(f"{about} {share:.3f}" for about, share in shares.items())


def _fall(losses: Sequence[float]) -> str:
    return f"{losses[0]:.3f} to {sum(losses[-20:]) / len(losses[-20:]):.3f}"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="tools.train_tiny_vlm", description=__doc__)
    parser.add_argument("recipes", nargs="+", choices=RECIPES)
    parser.add_argument("--out", type=Path, default=home(), help="folder of data and checkpoints")
    parser.add_argument("--answer-steps", type=positive_int, default=1200)
    given = parser.parse_args()
    try:
        given.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot make --out {given.out}: {error.strerror}")
    wheel = easy_vqa.fetch(given.out)
    lesson, held_out = (Lesson.read(wheel, part) for part in ("train", "test"))
    for name in given.recipes:
        torch.manual_seed(0)
        student = Student(RECIPES[name], lesson)
        views = Views.of_lesson(student, lesson, _VIEWS)
        seen = train_tower(student, lesson, views, RECIPES[name].tower_steps)
        said = train(student, lesson, embed(student, views), given.answer_steps)
        print(f"{name}: loss of the tower {_fall(seen)}, of answers {_fall(said)}")
        one, two = held_out.questions(), held_out.questions_of_two(1000, Random(1))
        print("held out, one picture:", _shown(accuracy(student, held_out, one)))
        print("held out, one of two pictures:", _shown(accuracy(student, held_out, two)))
        print(save(student, given.out / name))


if __name__ == "__main__":
    main()
