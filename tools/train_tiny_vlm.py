"""Trains tiny vision-language models to tell colours and shapes, on a CPU: LLaVA with SigLIP,
SmolVLM with tiles, and Qwen2-VL with positions on three axes.

    python -m tools.train_tiny_vlm llava smolvlm qwen2_vl

The questions are those of `tools.easy_vqa`, and others about the first or the second of two
pictures. The vision tower is trained first, with linear classifiers of colours and shapes in place
of the language model; the language model is then trained on the embeddings of the tower. Data and
weights go to the cache of models (`BATON_CACHE_DIR`), where `tests/system/test_trained_sight.py`
reads them. The same arguments give the same bits on the same machine and libraries.
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
from tools.arguments import new_folder, positive_int
from tools.byte_tokenizer import save_tokenizer
from tools.easy_vqa import About, Lesson, Talk
from tools.tiny_vlm_recipes import END, PAD, RECIPES
from tools.tiny_vlm_student import IGNORED, Student, Views

_RATE, _WARM, _DECAY = 3e-3, 30, 0.05
_PICTURES = 64
"""Pictures per batch."""
_OF_TWO = 0.6
"""Share of batches about two pictures."""
_VIEWS = 4
"""Views of each picture, with its shape in different places."""
_DEVIATION = 0.3
"""Standard deviation of the embeddings of pictures. The output of a layer is lost in much larger
ones, and with it the position of a picture in the prompt."""
_ABOUT: tuple[About, ...] = ("colour", "shape")


def home() -> Path:
    """Folder of the data set and of one checkpoint per recipe."""
    return Settings().cache_dir / "tiny-vlm"


class Optimizer:
    """AdamW with a linear warm-up and a cosine schedule."""

    def __init__(self, parameters: Sequence[nn.Parameter], steps: int) -> None:
        self._parameters, self._step, self._steps = parameters, 0, steps
        self._adam = torch.optim.AdamW(parameters, betas=(0.9, 0.98), weight_decay=_DECAY)

    def step(self, loss: Tensor) -> float:
        """Take one optimizer step; returns the loss."""
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
    """Answers of a lesson about the colour or the shape, as class indices."""

    def __init__(self, lesson: Lesson, about: About) -> None:
        self._answers = {
            number: turn.answer
            for number, turns in lesson.turns.items()
            for turn in turns
            if turn.about == about
        }
        self.answers = sorted(set(self._answers.values()))
        self._places = {answer: place for place, answer in enumerate(self.answers)}

    def of(self, numbers: Sequence[int]) -> Tensor:
        """int64 [N], `IGNORED` for pictures without an answer."""
        answers = (self._answers.get(number, "") for number in numbers)
        return torch.tensor([self._places.get(answer, IGNORED) for answer in answers])


def train_tower(
    student: Student, lesson: Lesson, views: Views, steps: int, pictures: int = _PICTURES
) -> list[float]:
    """Train the tower with two classifiers of its mean embedding; returns the losses."""
    numbers, chance = list(lesson.turns), Random(0)
    labels = {about: Labels(lesson, about) for about in _ABOUT}
    width = student.model.config.text_config.hidden_size
    heads = nn.ModuleDict({a: nn.Linear(width, len(labels[a].answers)) for a in _ABOUT})
    optimizer = Optimizer([*student.tower(), *heads.parameters()], steps)
    losses = list[float]()
    for _ in range(steps):
        batch = chance.choices(numbers, k=pictures)
        means = student.features(views.of(batch, chance)).mean(1)
        means = F.rms_norm(means, means.shape[-1:])
        loss = sum(F.cross_entropy(heads[a](means), labels[a].of(batch)) for a in _ABOUT)
        losses.append(optimizer.step(torch.as_tensor(loss)))
    return losses


def embed(student: Student, views: Views) -> Views:
    """Embeddings of the views, scaled to about the size of text embeddings."""
    embeddings = views.embedded(student)
    factor = _DEVIATION / embeddings.deviation()
    student.scale_features(factor)
    return embeddings.scaled(factor)


def train(
    student: Student, lesson: Lesson, views: Views, steps: int, pictures: int = _PICTURES
) -> list[float]:
    """Train the language model on the embeddings of the views; returns the losses."""
    chance, losses = Random(0), list[float]()
    frozen = {id(parameter) for parameter in student.tower()}
    trainable = [p for p in student.model.parameters() if id(p) not in frozen]
    optimizer = Optimizer(trainable, steps)
    student.model.train()
    for talks in lessons(lesson, steps, pictures, chance):
        numbers = [number for talk in talks for number in talk.pictures]
        batch = student.batch(talks, views.of(numbers, chance))
        loss = F.cross_entropy(student.logits(batch).flatten(0, 1), batch.labels.flatten())
        losses.append(optimizer.step(loss))
    student.model.eval()
    return losses


def lessons(lesson: Lesson, steps: int, pictures: int, chance: Random) -> Iterator[list[Talk]]:
    """The batches of conversations of all steps."""
    for _ in range(steps):
        if chance.random() < _OF_TWO:
            talks = [lesson.talk_of_two(chance) for _ in range(pictures // 2)]
            yield [t._replace(turns=tuple(chance.sample(t.turns, len(t.turns)))) for t in talks]
        else:
            yield [lesson.talk(chance) for _ in range(pictures)]


@torch.inference_mode()
def accuracy(student: Student, lesson: Lesson, talks: Sequence[Talk]) -> dict[str, float]:
    """Share of right answers to questions about the colour and about the shape."""
    views = Views.of_lesson(student, lesson, 1).embedded(student)
    right, total = Counter[str](), Counter[str]()
    for first in range(0, len(talks), _PICTURES):
        part = talks[first : first + _PICTURES]
        numbers = [number for talk in part for number in talk.pictures]
        batch = student.batch(part, views.of(numbers, Random(0)))
        best = student.logits(batch).argmax(-1)
        correct = ((best == batch.labels) | (batch.labels == IGNORED)).all(1)
        for talk, good in zip(part, correct.tolist(), strict=True):
            right[talk.turns[-1].about] += good
            total[talk.turns[-1].about] += 1
    return {about: right[about] / total[about] for about in total}


def save(student: Student, folder: Path) -> str:
    """Write a checkpoint that can be served; returns the SHA-256 of its tensors."""
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
    parser.add_argument(
        "--out", type=new_folder, default=home(), help="folder of data and checkpoints"
    )
    parser.add_argument("--answer-steps", type=positive_int, default=1200)
    args = parser.parse_args()
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot make --out {args.out}: {error.strerror}")
    wheel = easy_vqa.fetch(args.out)
    lesson, held_out = (Lesson.read(wheel, part) for part in ("train", "test"))
    for name in args.recipes:
        torch.manual_seed(0)
        student = Student(RECIPES[name], lesson)
        views = Views.of_lesson(student, lesson, _VIEWS)
        tower_losses = train_tower(student, lesson, views, RECIPES[name].tower_steps)
        losses = train(student, lesson, embed(student, views), args.answer_steps)
        print(f"{name}: loss of the tower {_fall(tower_losses)}, of answers {_fall(losses)}")
        one, two = held_out.questions(), held_out.questions_of_two(1000, Random(1))
        print("held out, one picture:", _shown(accuracy(student, held_out, one)))
        print("held out, one of two pictures:", _shown(accuracy(student, held_out, two)))
        print(save(student, args.out / name))


if __name__ == "__main__":
    main()
