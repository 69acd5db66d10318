"""Models over positions of several axes, as an image in a text gives them, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.attention import AttentionBatch
from baton_worker.checkpoint.load import load_model
from baton_worker.kv_cache import KVCache
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.models.encoder import Stack, blocks_of
from baton_worker.spec.names import Names
from tests.support import tiny_models

CPU = torch.device("cpu")
_PLAIN = (("up", "model.layers.{layer}.mlp.fc1"), ("down", "model.layers.{layer}.mlp.fc2"))
ROWS = [
    pytest.param("Qwen2VLForConditionalGeneration", 3, marks=pytest.mark.row("F05.08")),
    pytest.param("Qwen2_5_VLForConditionalGeneration", 3, marks=pytest.mark.row("F05.08")),
    pytest.param("Qwen3VLForConditionalGeneration", 3, marks=pytest.mark.row("F05.09")),
    pytest.param("HunYuanVLForConditionalGeneration", 4, marks=pytest.mark.row("F05.13")),
    pytest.param("Ernie4_5_VLMoeForConditionalGeneration", 3, marks=pytest.mark.row("F05.14")),
]


def positions(axes: int) -> Tensor:
    """Seven tokens of text, an image of 4 x 5 patches, eleven tokens that follow: the last two or
    three axes are those of the image. [axes, 38]."""
    before, after = torch.arange(7), torch.arange(12, 23)
    row, column = torch.arange(20) // 5 + 7, torch.arange(20) % 5 + 7
    image = torch.stack((torch.full((20,), 7), row, column))
    if axes == 4:
        image = torch.cat((torch.arange(7, 27)[None], image))
    return torch.cat((before.expand(axes, -1), image, after.expand(axes, -1)), 1)


@pytest.mark.parametrize(("architecture", "axes"), ROWS)
@torch.inference_mode()
def test_logits_beside_an_image(tmp_path: Path, architecture: str, axes: int) -> None:
    """As a whole, in chunks, and token by token."""
    model = tiny_models.save_checkpoint(tmp_path, architecture)
    loaded = load_model(tmp_path, BuildContext(CPU, torch.float32))
    places = positions(axes)
    tokens = torch.randint(
        2, tiny_models.VOCAB_SIZE, (38,), generator=torch.Generator().manual_seed(0)
    )
    body = model.model.language_model
    states = body(input_ids=tokens[None], position_ids=places[:, None], use_cache=False)
    expected = model.lm_head(states.last_hidden_state[0])
    for chunk in (38, 9, 1):
        ours = _run(loaded, tokens, places, chunk)
        assert (ours - expected).abs().max() < 1e-3
    plain = _run(loaded, tokens, torch.arange(38), 38)
    assert (plain - expected).abs().max() > 0.1


def _run(loaded: Any, tokens: Tensor, places: Tensor, chunk: int) -> Tensor:
    """Logits of one text in chunks, over pages."""
    cache = KVCache(loaded.spec, 16, 4, dtype=torch.float32, device=CPU)
    table, parts = list(range(15, 0, -1)), list[Tensor]()
    for at in range(0, len(tokens), chunk):
        some = slice(at, at + chunk)
        batch = AttentionBatch.build([len(tokens[some])], [at], [table], 4, CPU)
        hidden = loaded.model(tokens[some], places[..., some], batch, cache)
        parts.append(loaded.model.logits(hidden))
    return torch.cat(parts)


@pytest.mark.row("F05.15")
@torch.inference_mode()
def test_the_stack_of_llama_4s_vision_encoder() -> None:
    """Two images of 3 x 3 patches, each with its class token at the end."""
    from transformers.models.llama4.configuration_llama4 import Llama4VisionConfig
    from transformers.models.llama4.modeling_llama4 import (
        Llama4VisionEncoder,
        Llama4VisionRotaryEmbedding,
    )

    config = Llama4VisionConfig(
        hidden_size=48,
        num_attention_heads=3,
        num_hidden_layers=2,
        intermediate_size=80,
        image_size=12,
        patch_size=4,
        attn_implementation="eager",
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = Llama4VisionEncoder(config).eval()
        pixels = torch.randn(2, 10, 48)
    turns = Llama4VisionRotaryEmbedding(config)(pixels)
    expected = theirs(pixels, freqs_ci=turns, attention_mask=None)
    expected = getattr(expected, "last_hidden_state", expected)
    number = torch.arange(9)
    places = torch.nn.functional.pad(torch.stack((number % 3 + 1, number // 3 + 1)), (0, 1))
    ours = _stack(theirs, config)(pixels.flatten(0, 1), places.repeat(1, 2), [10, 10])
    torch.testing.assert_close(ours, expected.flatten(0, 1), rtol=1e-4, atol=1e-4)


def _stack(theirs: Any, config: Any) -> Stack:
    rope = spec.Rope(
        16,
        config.rope_parameters["rope_theta"],
        10,
        kind="axial",
        interleaved=True,
        sections=spec.Sections((4, 4)),
    )
    attention = spec.Attention(
        3, 3, 16, 0.25, rope, projections=spec.Projections(True, output_bias=True)
    )
    encoder = spec.Encoder(
        hidden=48,
        vocab=1,
        layers=((attention, spec.Mlp(80, "gelu", bias=True)),) * 2,
        norm=spec.Norm(1e-5, "layer", bias=True),
        head=spec.Head(tied=True),
        final_norm=False,
        tensors=spec.TensorLayout(names=_PLAIN),
    )
    context, state = (
        BuildContext(CPU, torch.float32, Names(encoder.tensors.names)),
        theirs.state_dict(),
    )
    stack = Stack(encoder, blocks_of(encoder, context), context)
    for layer in [part for part in stack.modules() if isinstance(part, Layer)]:
        for name, destination in layer.weight_targets():
            destination.copy_(state[name.removeprefix("model.")])
        layer.process_weights_after_loading()
    return stack
