"""What PaliGemma reads from a config."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.siglip_towers import paligemma
from baton_worker.spec import Attention

VISION = {
    **{"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304},
    **{"num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14},
}


def config(text: dict[str, Any], **fields: Any) -> SimpleNamespace:
    parts = {"text_config": SimpleNamespace(**text), "vision_config": SimpleNamespace(**VISION)}
    return SimpleNamespace(**parts | fields)


def test_paligemma_leaves_out_what_transformers_knows() -> None:
    text = {"model_type": "gemma", "hidden_size": 2048, "num_hidden_layers": 18}
    text |= {"intermediate_size": 16_384, "num_attention_heads": 8, "num_key_value_heads": 1}
    spec = paligemma(config(text | {"vocab_size": 257_216}, image_token_index=257_152))
    tower = spec.tower
    assert (spec.hidden, spec.vocab, spec.max_length, spec.head.tied) == (2048, 257_216, 8192, True)
    assert tower is not None and (tower.stack.patches.count, tower.image_token) == (256, 257_152)
    assert tower.bidirectional and paligemma(config(text)).tower.image_token == 256_000  # type: ignore[union-attr]


def test_paligemma_2_serves_what_its_windows_hide_nothing_of() -> None:
    """Prompts are not bounded by them in transformers; only text behind is."""
    for window in (4096, 70):
        spec = paligemma(config({"model_type": "gemma2", "sliding_window": window}))
        masks = [mixer.mask for mixer, _ in spec.layers if isinstance(mixer, Attention)]
        assert spec.max_length == window and len(masks) == 26
        assert all(mask.window is None and mask.spans for mask in masks)
        assert masks and spec.head.softcap == 30.0
