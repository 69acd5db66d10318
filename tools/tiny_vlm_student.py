"""A tiny vision-language model that learns: its tokenizer, its weights and what it is shown."""

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
"""Pictures whose embeddings are made in one step."""


def tokenizer_of(recipe: Recipe, lesson: Lesson) -> Any:
    """A byte-level BPE tokenizer of the words in the questions."""
    talks = (*lesson.questions(), *lesson.questions_of_two(100, Random(0)))
    said = (text for talk in talks for turn in talk.turns for text in turn[1:])
    return byte_tokenizer(recipe.tokens, said, _VOCABULARY)


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
    wanted: Tensor
    """int64 [N, T]: the token behind each, where it is part of an answer."""
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
        """What the image processor of transformers makes of each: float16 [N, ...]."""
        import transformers

        kind = f"{self.recipe.processor['image_processor_type']}Pil"
        process = getattr(transformers, kind)(**self.recipe.processor)
        seen = (process([each], return_tensors="pt")["pixel_values"] for each in pictures)
        return torch.stack([pixels.half().flatten(0, pixels.ndim - 4) for pixels in seen])

    def conversation(self, talk: Talk) -> tuple[list[int], list[int]]:
        """Tokens, and those wanted behind each."""
        tokens, wanted = list[int](), list[int]()
        seen = self.recipe.written * len(talk.pictures)
        for turn in talk.turns:
            asked = self._ids(f"<|user|>{seen}{turn.question}{END}<|assistant|>")
            answer = self._ids(turn.answer + END)
            tokens += asked + answer
            wanted += [IGNORED] * (len(asked) - 1) + answer + [IGNORED]
            seen = ""
        return tokens, wanted

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    def batch(self, talks: Sequence[Talk], features: Tensor) -> Batch:
        """Filled up on the right."""
        rows = [tuple(map(torch.tensor, self.conversation(talk))) for talk in talks]
        tokens, wanted = (
            nn.utils.rnn.pad_sequence([row[part] for row in rows], True, filler)
            for part, filler in enumerate((self._pad, IGNORED))
        )
        return Batch(tokens, wanted, features.float())

    def logits(self, batch: Batch) -> Tensor:
        """float32 [N, T, vocabulary]"""
        seen = batch.tokens == self._image
        embeddings = self.model.get_input_embeddings()(batch.tokens)
        embeddings = embeddings.masked_scatter(seen[..., None], batch.features)
        mask = (batch.tokens != self._pad).long()
        given: dict[str, Any] = {"attention_mask": mask, "use_cache": False}
        if self.recipe.grid:
            given["position_ids"], _ = self.model.model.get_rope_index(
                batch.tokens, seen.int(), **self._grids(len(batch.features)), attention_mask=mask
            )
        said = self.model(inputs_embeds=embeddings, **given)
        logits: Tensor = said.logits
        return logits

    def features(self, pixels: Tensor) -> Tensor:
        """The embeddings of pictures [N, ...]: float32 [N, tokens, width]."""
        count = len(pixels)
        pixels = pixels.float() if self.recipe.batched else pixels.float().flatten(0, 1)
        seen = self.model.model.get_image_features(pixel_values=pixels, **self._grids(count))
        rows = torch.cat([*seen.pooler_output])
        return rows.reshape(count, -1, rows.shape[-1])

    def tower(self) -> list[nn.Parameter]:
        """The parameters of the vision tower and the projector."""
        named = self.model.model.named_parameters()
        return [p for name, p in named if not name.startswith(("language_model", "text_model"))]

    @torch.no_grad()
    def scale_features(self, factor: float) -> None:
        """Multiply the embeddings of all pictures, by the last product of the projector."""
        for parameter in self.model.model.get_submodule(self.recipe.projection).parameters():
            parameter.mul_(factor)

    def _grids(self, pictures: int) -> dict[str, Tensor]:
        """The patches of so many pictures, where the model is told."""
        grid = self.recipe.grid
        return {"image_grid_thw": torch.tensor([grid] * pictures)} if grid else {}


class Views:
    """What is known of every picture of a lesson, with its shape in several places."""

    def __init__(self, rows: dict[int, int], seen: list[Tensor]) -> None:
        self._rows, self._seen = rows, seen

    @classmethod
    def of_lesson(cls, student: Student, lesson: Lesson, count: int) -> Views:
        """The pixels of so many views: the picture as it is, then its shape elsewhere."""
        chance, pictures = Random(0), [lesson.picture(number) for number in lesson.files]
        views = [student.pixels(pictures)]
        for _ in range(count - 1):
            moved = [easy_vqa.moved(picture, chance) for picture in pictures]
            views.append(student.pixels(moved))
        return cls({number: row for row, number in enumerate(lesson.files)}, views)

    @torch.no_grad()
    def embedded(self, student: Student) -> Views:
        """The same views as embeddings, for a student whose tower has learnt all that it will."""
        parts = (
            [student.features(some) for some in torch.split(view, _AT_ONCE)] for view in self._seen
        )
        return Views(self._rows, [torch.cat(part) for part in parts])

    def scaled(self, factor: float) -> Views:
        """All values multiplied."""
        return Views(self._rows, [view * factor for view in self._seen])

    def deviation(self) -> float:
        """The standard deviation of all values."""
        return float(self._seen[0].std())

    def of(self, numbers: Sequence[int], chance: Random) -> Tensor:
        """Those of pictures, each in one of its views: [N, ...]."""
        return torch.stack([chance.choice(self._seen)[self._rows[n]] for n in numbers])
