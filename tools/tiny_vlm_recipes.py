"""Three architectures of vision-language models in sizes of a third of a million parameters, for
pictures of 64 x 64 pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

IMAGE, PAD, END = "<image>", "<|pad|>", "<|end|>"
_LAYERS, _WIDTH, _HEADS = 3, 64, 4
_TEXT: dict[str, Any] = {
    "hidden_size": _WIDTH,
    "intermediate_size": 3 * _WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _HEADS,
    "head_dim": _WIDTH // _HEADS,
    "max_position_embeddings": 512,
    # About 1/sqrt(hidden_size): with the usual 0.02 layers this narrow contribute nothing.
    "initializer_range": 0.1,
}
_VISION: dict[str, Any] = {
    "hidden_size": _WIDTH,
    "intermediate_size": 3 * _WIDTH,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": _HEADS,
    "patch_size": 8,
}
_COLORS = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}PICTURE{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True)
class Recipe:
    """An architecture and its configuration."""

    name: str
    """Name of its classes in transformers, without `ForConditionalGeneration`."""
    config: dict[str, Any]
    processor: dict[str, Any]
    """preprocessor_config.json"""
    prompt_text: str
    """Text of a picture in the prompt, with one image token per embedding."""
    projection: str
    """Module path of the last layer of the projector."""
    special: tuple[str, ...] = ()
    """Special tokens of `prompt_text` other than `image_token`."""
    image_token: str = IMAGE
    template_text: str = IMAGE
    """Text of a picture in the chat template."""
    grid: tuple[int, int, int] | None = None
    """Patches in time, height and width, for models that take `image_grid_thw`."""
    tower_steps: int = 600
    """Training steps of the tower; tiled pictures need more."""
    batched: bool = False
    """Whether pixels have the shape [rows, images per row, ...] instead of [images, ...]."""

    @property
    def chat_template(self) -> str:
        """The chat template in Jinja."""
        return _TEMPLATE.replace("PICTURE", self.template_text)

    @property
    def tokens(self) -> tuple[str, ...]:
        """All special tokens in the order of their ids."""
        return (END, PAD, "<|user|>", "<|assistant|>", self.image_token, *self.special)


_LLAVA = Recipe(
    "Llava",
    {
        "text_config": {"model_type": "llama", **_TEXT},
        "vision_config": _VISION
        | {"model_type": "siglip_vision_model", "image_size": 64}
        | {"vision_use_head": False},
        "image_seq_length": 64,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    },
    {"image_processor_type": "SiglipImageProcessor", "size": {"height": 64, "width": 64}} | _COLORS,
    IMAGE * 64,
    "multi_modal_projector.linear_2",
)
_AROUND, _WHOLE = "<fake_token_around_image>", "<global-img>"
_TILES = tuple(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2))
_WRITTEN = [f"{_AROUND}{tile}{IMAGE * 9}" for tile in (*_TILES, _WHOLE)]
_SMOLVLM = Recipe(
    "SmolVLM",
    {
        "text_config": {"model_type": "llama", **_TEXT},
        "vision_config": _VISION | {"model_type": "smolvlm_vision", "image_size": 48},
        "scale_factor": 2,
    },
    {
        "image_processor_type": "SmolVLMImageProcessor",
        "size": {"longest_edge": 96},
        "max_image_size": {"longest_edge": 48},
        **_COLORS,
    },
    "{}{}\n{}{}\n\n{}".format(*_WRITTEN) + _AROUND,
    "connector.modality_projection.proj",
    (_AROUND, _WHOLE, *_TILES),
    tower_steps=2000,
    batched=True,
)
_ROTATION = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
_START, _PATCH, _STOP = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"
_QWEN2_VL = Recipe(
    "Qwen2VL",
    {
        "text_config": _TEXT | {"rope_parameters": _ROTATION},
        "vision_config": {"depth": _LAYERS, "embed_dim": _WIDTH, "hidden_size": _WIDTH}
        | {"num_heads": _HEADS, "mlp_ratio": 3, "patch_size": 8, "initializer_range": 0.1},
    },
    {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 8,
        "size": {"shortest_edge": 256, "longest_edge": 4096},
        **_COLORS,
    },
    _START + _PATCH * 16 + _STOP,
    "visual.merger.mlp.2",
    (_START, _STOP),
    _PATCH,
    _START + _PATCH + _STOP,
    (1, 8, 8),
)
RECIPES = {"llava": _LLAVA, "smolvlm": _SMOLVLM, "qwen2_vl": _QWEN2_VL}
