"""A tiny vision-language model in training: its tokenizer, weights and inputs."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tools import easy_vqa
from tools.byte_tokenizer import byte_tokenizer
from tools.easy_vqa import Lesson, Talk
from tools.tiny_vlm_recipes import END, PAD, Recipe

IGNORED = -100
_VOCABULARY = 512
_AT_ONCE = 64
"""Pictures per forward pass of the vision tower."""


def tokenizer_of(recipe: Recipe, lesson: Lesson) -> Any:
    """Train a byte-level BPE tokenizer on the questions and answers."""
    talks = (*lesson.questions(), *lesson.questions_of_two(100, Random(0)))
    texts = (text for talk in talks for turn in talk.turns for text in turn[1:])
    return byte_tokenizer(recipe.tokens, texts, _VOCABULARY)


def model_of(recipe: Recipe, tokenizer: Any) -> Any:
    """A model with random weights."""
    import transformers

    token = tokenizer.token_to_id(recipe.image_token)
    named = {"image_token_index": token, "image_token_id": token, "tie_word_embeddings": True}
    config = getattr(transformers, f"{recipe.name}Config")(**recipe.config | named)
    text = config.text_config
    text.vocab_size, text.bos_token_id, text.tie_word_embeddings = _VOCABULARY, None, True
    text.eos_token_id, text.pad_token_id = map(tokenizer.token_to_id, (END, PAD))
    return getattr(transformers, f"{recipe.name}ForConditionalGeneration")(config)


class Batch(NamedTuple):
    """N conversations of T tokens at most."""

    tokens: Tensor
    """int64 [N, T]"""
    labels: Tensor
    """int64 [N, T]: the next token if it is part of an answer, `IGNORED` otherwise."""
    features: Tensor
    """float32 [pictures, tokens, width]: the embeddings of the pictures."""


class Student:
    """A model of one recipe with its tokenizer."""

    def __init__(self, recipe: Recipe, lesson: Lesson) -> None:
        self.recipe, self.tokenizer = recipe, tokenizer_of(recipe, lesson)
        self.model = model_of(recipe, self.tokenizer)
        self._pad = self.tokenizer.token_to_id(PAD)
        self._image = self.tokenizer.token_to_id(recipe.image_token)

    def pixels(self, pictures: Sequence[Any]) -> Tensor:
        """The output of the image processor of transformers: float16 [N, ...]."""
        import transformers

        kind = f"{self.recipe.processor['image_processor_type']}Pil"
        process = getattr(transformers, kind)(**self.recipe.processor)
        processed = (process([each], return_tensors="pt")["pixel_values"] for each in pictures)
        return torch.stack([pixels.half().flatten(0, pixels.ndim - 4) for pixels in processed])

    def conversation(self, talk: Talk) -> tuple[list[int], list[int]]:
        """Tokens and labels."""
        tokens, labels = list[int](), list[int]()
        images = self.recipe.prompt_text * len(talk.pictures)
        for turn in talk.turns:
            prompt = self._ids(f"<|user|>{images}{turn.question}{END}<|assistant|>")
            answer = self._ids(turn.answer + END)
            tokens += prompt + answer
            labels += [IGNORED] * (len(prompt) - 1) + answer + [IGNORED]
            images = ""
        return tokens, labels

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    def batch(self, talks: Sequence[Talk], features: Tensor) -> Batch:
        """A batch of conversations, padded on the right."""
        rows = [tuple(map(torch.tensor, self.conversation(talk))) for talk in talks]
        tokens, labels = (
            nn.utils.rnn.pad_sequence([row[part] for row in rows], True, filler)
            for part, filler in enumerate((self._pad, IGNORED))
        )
        return Batch(tokens, labels, features.float())

    def logits(self, batch: Batch) -> Tensor:
        """float32 [N, T, vocabulary]"""
        is_image = batch.tokens == self._image
        embeddings = self.model.get_input_embeddings()(batch.tokens)
        embeddings = embeddings.masked_scatter(is_image[..., None], batch.features)
        mask = (batch.tokens != self._pad).long()
        kwargs: dict[str, Any] = {"attention_mask": mask, "use_cache": False}
        if self.recipe.grid:
            kwargs["position_ids"], _ = self.model.model.get_rope_index(
                batch.tokens,
                is_image.int(),
                **self._grids(len(batch.features)),
                attention_mask=mask,
            )
        logits: Tensor = self.model(inputs_embeds=embeddings, **kwargs).logits
        return logits

    def features(self, pixels: Tensor) -> Tensor:
        """The embeddings of pictures [N, ...]: float32 [N, tokens, width]."""
        count = len(pixels)
        pixels = pixels.float() if self.recipe.batched else pixels.float().flatten(0, 1)
        out = self.model.model.get_image_features(pixel_values=pixels, **self._grids(count))
        rows = torch.cat([*out.pooler_output])
        return rows.reshape(count, -1, rows.shape[-1])

    def tower(self) -> list[nn.Parameter]:
        """The parameters of the vision tower and the projector."""
        named = self.model.model.named_parameters()
        return [p for name, p in named if not name.startswith(("language_model", "text_model"))]

    @torch.no_grad()
    def scale_features(self, factor: float) -> None:
        """Multiply the embeddings of all pictures by scaling the last layer of the projector."""
        for parameter in self.model.model.get_submodule(self.recipe.projection).parameters():
            parameter.mul_(factor)

    def _grids(self, pictures: int) -> dict[str, Tensor]:
        """The argument with the grids of these pictures, for models that take it."""
        grid = self.recipe.grid
        return {"image_grid_thw": torch.tensor([grid] * pictures)} if grid else {}


class Views:
    """Pixels or embeddings of every picture of a lesson, with its shape in several places."""

    def __init__(self, rows: dict[int, int], views: list[Tensor]) -> None:
        self._rows, self._views = rows, views

    @classmethod
    def of_lesson(cls, student: Student, lesson: Lesson, count: int) -> Views:
        """Pixels of `count` views: the unchanged picture, then copies with the shape moved."""
        chance, pictures = Random(0), [lesson.picture(number) for number in lesson.files]
        views = [student.pixels(pictures)]
        for _ in range(count - 1):
            moved = [easy_vqa.moved(picture, chance) for picture in pictures]
            views.append(student.pixels(moved))
        return cls({number: row for row, number in enumerate(lesson.files)}, views)

    @torch.no_grad()
    def embedded(self, student: Student) -> Views:
        """The same views as embeddings of the student's trained tower."""
        parts = (
            [student.features(some) for some in torch.split(view, _AT_ONCE)] for view in self._views
        )
        return Views(self._rows, [torch.cat(part) for part in parts])

    def scaled(self, factor: float) -> Views:
        """All views multiplied by a factor."""
        return Views(self._rows, [view * factor for view in self._views])

    def deviation(self) -> float:
        """Standard deviation of the first view."""
        return float(self._views[0].std())

    def of(self, numbers: Sequence[int], chance: Random) -> Tensor:
        """A random view of each picture: [N, ...]."""
        return torch.stack([chance.choice(self._views)[self._rows[n]] for n in numbers])
