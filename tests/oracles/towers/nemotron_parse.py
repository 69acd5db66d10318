"""Nemotron Parse: RADIO of transformers, and a plain re-computation of its neck and decoder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.oracles.checkpoints import renamed, write
from tests.oracles.towers.plain import Weights, attend, cells
from tests.oracles.towers.radio import VISION, encoder
from tests.oracles.towers.sights import Images, Sight, pixels, sight

WIDTH, NECK, VOCAB, LAYERS, HEADS = 32, 1024, 320, 2, 4
PAGE = (36, 60)
"""Height and width of a page: 6 x 10 patches, of which two columns are too many."""
_DECODER: dict[str, Any] = {
    "d_model": WIDTH,
    "decoder_layers": LAYERS,
    "decoder_attention_heads": HEADS,
    "decoder_ffn_dim": 48,
    "activation_function": "gelu",
    "scale_embedding": True,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "eos_token_id": 2,
}


class Parse:
    """A tiny random checkpoint, and what it answers."""

    def __init__(self, folder: Path, start: int) -> None:
        with torch.no_grad():
            self.radio, vision = encoder()
        self.w = w = Weights()
        for name, tensor in renamed(vision, ("vision_model.", "encoder.model_encoder.")).items():
            w[name] = tensor
        w.random("encoder.conv1.weight", NECK, 32, 1)
        w.random("encoder.conv1.bias", NECK)
        w.random("encoder.conv2.weight", NECK, NECK, 1, 4, scale=0.02)
        w.linear("encoder.sum_proj", 3 * 32, NECK)
        for part in (1, 2, 3):
            w.norm(f"encoder.layer_norm{part}", NECK)
        w.random("decoder.embed_tokens.weight", VOCAB, WIDTH)
        w.random("lm_head.weight", VOCAB, WIDTH, scale=0.5)
        w.norm("decoder.layernorm_embedding", WIDTH)
        w.norm("decoder.layer_norm", WIDTH)
        for layer in range(LAYERS):
            self._layer(f"decoder.layers.{layer}")
        fields = {
            "model_type": "nemotron_parse",
            "encoder": VISION,
            "decoder": _DECODER,
            "image_size": PAGE,
            "decoder_start_token_id": start,
            "max_sequence_length": 200,
        }
        write(folder, "NemotronParseForConditionalGeneration", fields, w)

    def _layer(self, name: str) -> None:
        w = self.w
        for kind, inputs in (("self_attn", WIDTH), ("encoder_attn", NECK)):
            w.norm(f"{name}.{kind}_layer_norm", WIDTH)
            for part in ("q_proj", "out_proj"):
                w.linear(f"{name}.{kind}.{part}", WIDTH, WIDTH)
            for part in ("k_proj", "v_proj"):
                w.linear(f"{name}.{kind}.{part}", inputs, WIDTH)
        w.norm(f"{name}.final_layer_norm", WIDTH)
        w.linear(f"{name}.fc1", WIDTH, 48)
        w.linear(f"{name}.fc2", 48, WIDTH)

    @torch.no_grad()
    def page(self, image: Tensor) -> Tensor:
        """[3, height, width] to its vectors: 4 x 1 patches become one, and one is the summary of
        the class tokens of three teachers, the second of which is that of a register."""
        w, out = self.w, self.radio(image[None])
        rows, columns = PAGE[0] // 6, PAGE[1] // 6
        x = F.linear(out.features[0], w["encoder.conv1.weight"][:, :, 0], w["encoder.conv1.bias"])
        plane = w.layer_norm("encoder.layer_norm1", x).T.reshape(1, NECK, rows, columns)
        x = F.conv2d(plane, w["encoder.conv2.weight"], stride=(1, 4))[0].flatten(1).T
        states = self.states(image)[:3].flatten()
        summary = w.layer_norm("encoder.layer_norm3", w.run("encoder.sum_proj", states))
        return torch.cat((w.layer_norm("encoder.layer_norm2", x), summary[None]))

    def states(self, image: Tensor) -> Tensor:
        """All states of the last layer, those of class tokens and registers first."""
        found = self.radio(image[None], output_hidden_states=True)
        return found.hidden_states[-1][0]

    @torch.no_grad()
    def logits(self, tokens: list[int], page: Tensor | None) -> Tensor:
        """Of every token; without a page nothing attends to one (arXiv:2001.08210)."""
        w, count = self.w, len(tokens)
        x = w["decoder.embed_tokens.weight"][torch.tensor(tokens)] * math.sqrt(WIDTH)
        x = w.layer_norm("decoder.layernorm_embedding", x, 1e-5)
        later = torch.full((count, count), -torch.inf).triu(1)
        for layer in range(LAYERS):
            name = f"decoder.layers.{layer}"
            y = w.layer_norm(f"{name}.self_attn_layer_norm", x, 1e-5)
            x = x + self._attend(f"{name}.self_attn", y, y, later)
            if page is not None:
                y = w.layer_norm(f"{name}.encoder_attn_layer_norm", x, 1e-5)
                x = x + self._attend(f"{name}.encoder_attn", y, page, None)
            y = w.layer_norm(f"{name}.final_layer_norm", x, 1e-5)
            x = x + w.run(f"{name}.fc2", F.gelu(w.run(f"{name}.fc1", y)))
        return w.run("lm_head", w.layer_norm("decoder.layer_norm", x, 1e-5))

    def _attend(self, name: str, x: Tensor, states: Tensor, bias: Tensor | None) -> Tensor:
        w = self.w
        key, value = (w.run(f"{name}.{part}_proj", states) for part in "kv")
        seen = attend(w.run(f"{name}.q_proj", x), key, value, HEADS, bias)
        return w.run(f"{name}.out_proj", seen)

    def continued(self, prompt: list[int], page: Tensor | None, count: int) -> list[int]:
        """What it writes greedily."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.logits(tokens, page)[-1].argmax()))
        return tokens[len(prompt) :]


@sight("NemotronParseForConditionalGeneration")
def nemotron_parse(folder: Path, architecture: str) -> Sight:
    """Two pages; its texts are those of `Parse`."""
    oracle, grid = Parse(folder, 300), (1, PAGE[0] // 6, PAGE[1] // 6)
    given = [pixels(seed, 3, *PAGE) for seed in (1, 2)]
    images: Images = [(cells(image, 6), grid) for image in given]
    return Sight(images, [oracle.page(image) for image in given], None, 300)
