"""Granite Speech, Phi-4-multimodal and Gemma 3n of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.oracles.audio.heard import Heard, clips, heard, randomise, saved
from tests.oracles.towers import mobilenet
from tests.support import tiny_phi4

TEXT: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
_GRANITE: dict[str, Any] = {
    "text_config": {"model_type": "granite", **TEXT},
    "encoder_config": {"input_dim": 16, "num_layers": 2, "hidden_dim": 32, "output_dim": 12}
    | {"feedforward_mult": 2, "num_heads": 4, "context_size": 6, "max_pos_emb": 8}
    | {"conv_kernel_size": 5},
    "projector_config": {"model_type": "blip_2_qformer", "hidden_size": 24}
    | {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    | {"encoder_hidden_size": 32, "cross_attention_frequency": 1},
    **{"audio_token_index": 319, "window_size": 6, "downsample_rate": 2},
    "has_lora_adapter": False,
}
_USM: dict[str, Any] = {
    **{"hidden_size": 32, "conf_num_attention_heads": 4, "conf_num_hidden_layers": 2},
    **{"sscp_conv_channel_size": [8, 4], "input_feat_size": 16, "conf_attention_chunk_size": 4},
    **{"conf_attention_context_left": 5, "conf_attention_context_right": 1},
    **{"vocab_size": 64, "vocab_offset": 256},
}
_SOUNDS, _ENDS = 7, 314
"""Gemma 3n's embeddings of a clip, and the token that ends it."""


@heard("GraniteSpeechForConditionalGeneration")
@torch.no_grad()
def granite_speech(folder: Path, architecture: str) -> Heard:
    """Whole blocks of attention and part of one; windows of the projector that are not full."""
    import transformers

    model = saved(folder, architecture, transformers.GraniteSpeechConfig(**_GRANITE))
    made = clips(16, 5, 12, 21)
    found = [model.get_audio_features(clip.mT).pooler_output[0] for clip, _ in made]
    return Heard(made, found, model)


@heard("Phi4MMForCausalLM", "Phi4MultimodalForCausalLM")
@torch.no_grad()
def phi4_multimodal(folder: Path, architecture: str) -> Heard:
    """A clip that is longer than what the encoder takes at one time."""
    model = tiny_phi4.save(folder)
    if architecture == "Phi4MMForCausalLM":
        tiny_phi4.as_published(folder)
    made, embed = clips(80, 9, 70, 4100), model.model.embed_tokens_extend.audio_embed
    found = [
        embed.down_proj_for_speech(
            torch.nn.functional.gelu(embed.up_proj_for_speech(embed.encoder(clip.mT, None)))
        )[0]
        for clip, _ in made
    ]
    return Heard(made, found, model, tiny_phi4.AUDIO_TOKEN)


@heard("Gemma3nForConditionalGeneration")
@torch.no_grad()
def gemma3n(folder: Path, architecture: str) -> Heard:
    """transformers has all but timm's encoder of images: the parts are put together here."""
    from transformers import Gemma3nAudioConfig, Gemma3nAudioEncoder, Gemma3nTextConfig
    from transformers.models.gemma3n import modeling_gemma3n as m

    fields = {"audio_config": _USM, "audio_token_id": 313, "eoa_token_id": _ENDS}
    fields["audio_soft_tokens_per_image"] = _SOUNDS
    text, _ = mobilenet.checkpoint(folder, architecture, **fields)
    config = Gemma3nAudioConfig(**_USM)
    torch.manual_seed(0)
    encoder = randomise(Gemma3nAudioEncoder(config).eval())
    embedder = randomise(m.Gemma3nMultimodalEmbedder(config, Gemma3nTextConfig(hidden_size=48)))
    made = clips(16, 3, 40, 100)
    found = [_soft_tokens(encoder, embedder, clip) for clip, _ in made]
    tensors = load_file(folder / "model.safetensors")
    for name, part in (("audio_tower", encoder), ("embed_audio", embedder)):
        tensors |= {f"model.{name}.{key}": t for key, t in part.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return Heard(made, found, text, 313)


def _soft_tokens(encoder: Any, embedder: Any, clip: Tensor) -> Tensor:
    heard = torch.zeros(1, clip.shape[2], dtype=torch.bool)
    states = encoder(clip.mT, heard).last_hidden_state
    padding = embedder(input_ids=torch.tensor([[319] * (_SOUNDS - states.shape[1])]).long())
    end = embedder(input_ids=torch.tensor([[_ENDS]]))
    found: Tensor = torch.cat((embedder(inputs_embeds=states), padding, end), dim=1)[0]
    return found
