"""Ultravox, which transformers does not have: Whisper's encoder and Llama of transformers, and the
projector from its published description (https://github.com/fixie-ai/ultravox)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from tests.oracles.audio.conformers import TEXT
from tests.oracles.audio.heard import Heard, clips, heard, randomise

_BINS, _STATES, _STACK, _INNER = 20, 50, 8, 24
_SOUNDS: dict[str, Any] = {
    **{"model_type": "whisper", "num_mel_bins": _BINS, "d_model": 16, "encoder_layers": 2},
    **{"encoder_attention_heads": 2, "encoder_ffn_dim": 24, "max_source_positions": _STATES},
    "activation_function": "gelu",
}


@heard("UltravoxModel")
def ultravox(folder: Path, architecture: str) -> Heard:
    """As since version 0.5."""
    return saved(folder, "ln_mid")


@torch.no_grad()
def saved(folder: Path, second_norm: str) -> Heard:
    """Sounds of an odd number of frames, of a whole chunk, and of a chunk and a part. The second
    norm is "ln_mid", or "ln_post" up to version 0.4.1."""
    import transformers
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    torch.manual_seed(0)
    encoder = randomise(WhisperEncoder(transformers.WhisperConfig(**_SOUNDS))).eval()
    text = randomise(transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT))).eval()
    wide = 16 * _STACK
    projector = {
        "ln_pre.weight": 1 + 0.15 * torch.randn(wide),
        "linear_1.weight": 0.15 * torch.randn(_INNER, wide),
        "linear_2.weight": 0.15 * torch.randn(TEXT["hidden_size"], _INNER // 2),
    }
    width = _INNER // 2 if second_norm == "ln_mid" else TEXT["hidden_size"]
    projector[f"{second_norm}.weight"] = 1 + 0.15 * torch.randn(width)
    parts = {"audio_tower": encoder.state_dict(), "multi_modal_projector": projector}
    parts["language_model"] = text.state_dict()
    tensors = {f"{part}.{name}": t for part, of in parts.items() for name, t in of.items()}
    save_file({name: t.clone() for name, t in tensors.items()}, folder / "model.safetensors")
    config = {
        **{"architectures": ["UltravoxModel"], "model_type": "ultravox", "audio_config": _SOUNDS},
        **{"text_config": {"model_type": "llama", **TEXT}, "hidden_size": _INNER},
        **{"stack_factor": _STACK, "projector_act": "swiglu"},
        **{"audio_token_index": 319, "projector_ln_mid": second_norm == "ln_mid"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    made = clips(_BINS, 5, 38, 2 * _STATES)
    both = clips(_BINS, 2 * _STATES, 37)
    tail = F.pad(both[1][0], (0, 2 * _STATES - 37))
    found = [embeddings(encoder, projector, clip, grid[1]) for clip, grid in made]
    ends = [embeddings(encoder, projector, both[0][0], 2 * _STATES)]
    ends.append(embeddings(encoder, projector, tail, 37))
    made.append((torch.cat((both[0][0], tail)), (2, 2 * _STATES + 37, 0)))
    return Heard(made, [*found, torch.cat(ends)], text)


def embeddings(encoder: Any, projector: dict[str, Tensor], clip: Tensor, frames: int) -> Tensor:
    """[1, bins, n] of which so many frames are sound, to [embeddings, hidden]."""
    x = F.gelu(encoder.conv2(F.gelu(encoder.conv1(clip))))[0].T[: (frames - 1) // 2 + 1]
    x = x + encoder.embed_positions.weight[: len(x)]
    for layer in encoder.layers:
        out = layer(x[None], attention_mask=None)
        x = (out[0] if isinstance(out, tuple) else out)[0]
    x = encoder.layer_norm(x)
    x = F.pad(x, (0, 0, 0, -len(x) % _STACK)).reshape(-1, _STACK * x.shape[1])
    x = _rms(x, projector["ln_pre.weight"]) @ projector["linear_1.weight"].T
    value, gate = x.chunk(2, dim=-1)
    x = F.silu(gate) * value
    x = _rms(x, projector["ln_mid.weight"]) if "ln_mid.weight" in projector else x
    x = x @ projector["linear_2.weight"].T
    return _rms(x, projector["ln_post.weight"]) if "ln_post.weight" in projector else x


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
