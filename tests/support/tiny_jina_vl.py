"""A tiny random jina-reranker-m0 with all of its files, and the scores of its published recipe.

Like `tests.support.tiny_models`, importing this file costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import tiny_grids

SEEN = "<|vision_start|><|image_pad|><|vision_end|>"
_NAMES = ("vision_start", "image", "vision_end")
_SCORE_TOKEN, _LOGIT_BIAS = 100, 2.65


class Reranker:
    """Transformers' Qwen2-VL, and the head written out."""

    def __init__(self, folder: Path) -> None:
        """Save the model, its tokenizer and its image processor."""
        import torch
        from tokenizers import Tokenizer

        self._folder, self._body = folder, tiny_grids.save(folder, "qwen2-vl")
        hidden = self._body.config.text_config.hidden_size
        with torch.random.fork_rng():
            torch.manual_seed(7)
            self._score = torch.nn.Sequential(
                torch.nn.Linear(hidden, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 1)
            )
            for weight in self._score.parameters():
                torch.nn.init.normal_(weight, 0.0, 0.2)
            self._score[2].bias.data.fill_(_LOGIT_BIAS)  # Scores in the middle.
        self._save_tensors()
        self._image_token = self._name_tokens()
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def _save_tensors(self) -> None:
        """No language head, and two layers instead."""
        from safetensors.torch import load_file, save_file

        path = self._folder / "model.safetensors"
        tensors = {k: v for k, v in load_file(path).items() if not k.startswith("lm_head")}
        tensors |= {f"score.{k}": v.detach() for k, v in self._score.named_parameters()}
        save_file(tensors, path, {"format": "pt"})

    def _name_tokens(self) -> int:
        """Qwen2-VL's tokens of images, in the tokenizer and in the config; returns the image's."""
        from tokenizers import Tokenizer

        file, config = self._folder / "tokenizer.json", self._folder / "config.json"
        tokenizer = Tokenizer.from_file(str(file))
        texts = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
        tokenizer.add_special_tokens(list(texts))
        tokenizer.save(str(file))
        ids = [tokenizer.token_to_id(text) for text in texts]
        assert max(ids) < self._body.config.text_config.vocab_size
        named = {f"{name}_token_id": i for name, i in zip(_NAMES, ids, strict=True)}
        known = json.loads(config.read_text())
        changed = {"architectures": ["JinaVLForRanking"], **named, "eos_token_id": 1}
        changed["text_config"] = known["text_config"] | {"bos_token_id": 0, "eos_token_id": 1}
        config.write_text(json.dumps(known | changed))
        (self._folder / "generation_config.json").unlink()
        self._body.model.config.image_token_id = ids[1]
        return ids[1]

    def score(self, query: str, document: str, images: Sequence[Any] = ()) -> float:
        """The score of a pair; `SEEN` stands for an image of the document or of the query."""
        import torch
        from transformers import Qwen2VLImageProcessorPil

        text, seen = f"**Document**:\n{document}\n**Query**:\n{query}", dict[str, Any]()
        if images:
            processor = Qwen2VLImageProcessorPil.from_pretrained(self._folder)
            seen = dict(processor(list(images), return_tensors="pt"))
            for grid in seen["image_grid_thw"]:
                text = text.replace("<|image_pad|>", "<PAD>" * (int(grid.prod()) // 4), 1)
        ids = self._tokenizer.encode(text.replace("<PAD>", "<|image_pad|>")).ids
        row = torch.tensor([[*ids, _SCORE_TOKEN]])
        types = (row == self._image_token).int()
        with torch.inference_mode():
            out = self._body.model(input_ids=row, mm_token_type_ids=types, **seen)
            logit = self._score(out.last_hidden_state[0, -1])
            return float((logit - _LOGIT_BIAS).sigmoid())
