"""A LLaVA with the weights of SmolLM2 whose eyes are glass: a patch holds the embedding of a token.

Every pixel channel is a byte of a fixed-point number, and every layer of the tower adds nothing, so
that an answer about a picture of a text must be the answer to the text.

Like `tests.support.tiny_models`, importing this file costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SIDE = 3
"""Patches in a row, and rows: nine tokens a picture."""
PATCH = 20
"""Side of a patch, whose 1,200 channels hold two bytes of each of 576 numbers."""
IMAGE_TOKEN = 5
"""<file_sep>, which no chat has."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<file_sep>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_STEP = 2.0**-14
"""What the lowest bit of a number is worth: 16 bits reach from -2 to 2, and so do embeddings."""
_MIDDLE = 32_768
_SNAP = 768.0
"""Added between the projections. There float32 has steps of `_STEP`, which rounds away what the
normalisation of pixels has left, and GELU is the identity."""
_LAYERS = 2
_SIGLIP: dict[str, Any] = {
    "model_type": "siglip_vision_model",
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": 9,
    "intermediate_size": 32,
    "hidden_act": "gelu_pytorch_tanh",
    "image_size": SIDE * PATCH,
    "patch_size": PATCH,
}
_PARTS = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Names of tensors in GGUF files."""
_PROCESSOR: dict[str, Any] = {
    "image_processor_type": "SiglipImageProcessor",
    "size": {"height": SIDE * PATCH, "width": SIDE * PATCH},
    "resample": 3,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def save(folder: Path, gguf_file: Path) -> Any:
    """Save model, tokenizer and processor; returns the embeddings, [vocabulary, hidden]."""
    from safetensors.numpy import save_file

    from baton.checkpoint.gguf_header import read_metadata

    text = _text_config(read_metadata(gguf_file))
    tensors = dict(_language_model(gguf_file, text))
    embeddings = tensors["language_model.model.embed_tokens.weight"]
    width = text["hidden_size"]
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors | dict(_tower(width)) | _projector(width), folder / "model.safetensors")
    config = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "text_config": text,
        "vision_config": _SIGLIP | {"hidden_size": width},
        "image_token_index": IMAGE_TOKEN,
        "image_seq_length": SIDE**2,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "projector_hidden_act": "gelu",
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(_PROCESSOR))
    _save_tokenizer(folder, gguf_file)
    return embeddings


def _save_tokenizer(folder: Path, gguf_file: Path) -> None:
    from baton_tokenizer.vocabulary.formats.gguf import read_gguf

    source = read_gguf(gguf_file)
    (folder / "tokenizer.json").write_text(json.dumps(source.spec))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        **source.named,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _text_config(metadata: dict[str, Any]) -> dict[str, Any]:
    fields = {
        "hidden_size": "embedding_length",
        "intermediate_size": "feed_forward_length",
        "num_hidden_layers": "block_count",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "rms_norm_eps": "attention.layer_norm_rms_epsilon",
        "rope_theta": "rope.freq_base",
        "max_position_embeddings": "context_length",
        "vocab_size": "vocab_size",
    }
    config = {name: metadata[f"llama.{key}"] for name, key in fields.items()}
    return config | {"model_type": "llama", "hidden_act": "silu", "tie_word_embeddings": True}


def picture(embeddings: Any, tokens: Sequence[int]) -> Any:
    """A Pillow image of nine tokens, row by row."""
    import numpy as np
    from PIL import Image

    assert len(tokens) == SIDE**2
    numbers = np.rint(embeddings[list(tokens)] / _STEP).astype(np.int64) + _MIDDLE
    channels = np.zeros((SIDE**2, 3 * PATCH**2), np.uint8)
    parts = np.concatenate([numbers >> 8, numbers & 255], axis=1)
    channels[:, : parts.shape[1]] = parts
    grid = channels.reshape(SIDE, SIDE, 3, PATCH, PATCH).transpose(0, 3, 1, 4, 2)
    return Image.fromarray(np.ascontiguousarray(grid.reshape(SIDE * PATCH, SIDE * PATCH, 3)))


def _language_model(gguf_file: Path, text: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The dequantised tensors in float32, by the names of LLaVA; embeddings are whole steps."""
    import numpy as np
    from gguf import GGUFReader, dequantize

    heads = {"attn_q": text["num_attention_heads"], "attn_k": text["num_key_value_heads"]}
    for tensor in GGUFReader(gguf_file).tensors:
        *block, part, _ = tensor.name.split(".")
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if part in heads:  # llama.cpp stores the halves of a head row by row in turn.
            rows = values.reshape(heads[part], -1, 2, values.shape[1])
            values = np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(values.shape)
        if part == "token_embd":
            values = np.rint(values / _STEP) * np.float32(_STEP)
        layer = f"layers.{block[1]}." if block else ""
        yield f"language_model.model.{layer}{_PARTS[part]}.weight", values


def _tower(width: int) -> Iterator[tuple[str, Any]]:
    """Patches to the numbers of their bytes, and layers whose last products are of zeros."""
    import numpy as np

    root, random = "vision_tower.vision_model", np.random.default_rng(0)
    weight = np.zeros((width, 3 * PATCH**2), np.float32)
    rows = np.arange(width)
    # Normalised, a byte b is b / 127.5 - 1.
    weight[rows, rows], weight[rows, width + rows] = 127.5 * 256 * _STEP, 127.5 * _STEP
    bias = np.full(width, (127.5 * 257 - _MIDDLE) * _STEP, np.float32)
    yield f"{root}.embeddings.patch_embedding.weight", weight.reshape(width, 3, PATCH, PATCH)
    yield f"{root}.embeddings.patch_embedding.bias", bias
    yield f"{root}.embeddings.position_embedding.weight", np.zeros((SIDE**2, width), np.float32)
    inner = _SIGLIP["intermediate_size"]
    shapes = {f"self_attn.{part}_proj": (width, width) for part in ("q", "k", "v", "out")}
    shapes |= {"mlp.fc1": (inner, width), "mlp.fc2": (width, inner)}
    for layer in (f"{root}.encoder.layers.{index}" for index in range(_LAYERS)):
        for norm in ("layer_norm1", "layer_norm2"):
            yield f"{layer}.{norm}.weight", np.ones(width, np.float32)
            yield f"{layer}.{norm}.bias", np.zeros(width, np.float32)
        for name, shape in shapes.items():
            last = name in ("self_attn.out_proj", "mlp.fc2")
            values = random.normal(0, 0.0 if last else 0.05, shape).astype(np.float32)
            yield f"{layer}.{name}.weight", values
            yield f"{layer}.{name}.bias", np.zeros(shape[0], np.float32)


def _projector(width: int) -> dict[str, Any]:
    """The identity, twice, with what is added in the first taken away in the second."""
    import numpy as np

    identity, snap = np.eye(width, dtype=np.float32), np.full(width, _SNAP, np.float32)
    return {
        "multi_modal_projector.linear_1.weight": identity,
        "multi_modal_projector.linear_1.bias": snap,
        "multi_modal_projector.linear_2.weight": identity.copy(),
        "multi_modal_projector.linear_2.bias": -snap,
    }
