"""Fun-Audio-Chat, which transformers does not have: the encoder of Qwen2.5-Omni and Qwen3 of
transformers, and what is between them from the published code
(https://github.com/FunAudioLLM/Fun-Audio-Chat)."""

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
from tests.oracles.audio.qwen import windows

_GROUP, _CODES, _PAD = 3, 11, 9
_SOUNDS: dict[str, Any] = {
    **{"d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24},
    **{"num_mel_bins": 20, "output_dim": TEXT["hidden_size"], "n_window": 4},
}


@heard("FunAudioChatForConditionalGeneration")
def fun_audio_chat(folder: Path, architecture: str) -> Heard:
    """Both encoders."""
    return saved(folder, "add")


@torch.no_grad()
def saved(folder: Path, mode: str) -> Heard:
    """Sounds whose states fill their groups and do not, the last of which is left out in one.
    `mode` is "add", or "replace" for the continuous encoder alone."""
    import transformers
    from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as omni

    torch.manual_seed(0)
    config = transformers.Qwen2_5OmniThinkerConfig(audio_config=_SOUNDS).audio_config
    encoder = randomise(omni.Qwen2_5OmniAudioEncoder(config)).eval()
    qwen3 = transformers.Qwen3Config(**TEXT, head_dim=12)
    text = randomise(transformers.Qwen3ForCausalLM(qwen3)).eval()
    wide = TEXT["hidden_size"]
    shapes = {"embed_tokens": (_CODES, wide), "output_matching": (wide, wide)}
    shapes["continual_output_matching"] = (wide, wide)
    codes = {f"{name}.weight": 0.15 * torch.randn(shape) for name, shape in shapes.items()}
    parts = {"continuous_audio_tower": encoder.state_dict(), "audio_tower": codes}
    parts |= {"language_model": text.state_dict()}
    parts["audio_invert_tower"] = {"a.weight": torch.ones(2)}
    tensors = {f"{part}.{name}": t.clone() for part, of in parts.items() for name, t in of.items()}
    save_file(tensors, folder / "model.safetensors")
    own = {"group_size": _GROUP, "codebook_size": _CODES, "padding_token_id": _PAD}
    written = {
        **{"architectures": ["FunAudioChatForConditionalGeneration"], "audio_token_index": 317},
        "audio_config": _SOUNDS | own | {"continuous_features_mode": mode},
        "text_config": {"model_type": "qwen3", **TEXT, "head_dim": 12},
    }
    (folder / "config.json").write_text(json.dumps(written))
    made = clips(20, 5, 12, 13, 30)
    states = [
        encoder(clip[0], feature_lens=torch.tensor([grid[1]])).last_hidden_state
        for clip, grid in made
    ]
    found = [embeddings(codes, each, mode) for each in states]
    cut = [(clip, (*grid[:2], int(grid[1] == 30))) for clip, grid in windows(made, 8)]
    pairs = zip(found, cut, strict=True)
    return Heard(cut, [each[: len(each) - grid[2]] for each, (_, grid) in pairs], text, 317)


def embeddings(codes: dict[str, Tensor], states: Tensor, mode: str) -> Tensor:
    """[states, hidden] to [groups, hidden]."""
    filled = F.pad(states, (0, 0, 0, -len(states) % _GROUP))
    means = filled.unflatten(0, (-1, _GROUP)).mean(1) @ codes["continual_output_matching.weight"].T
    ids = torch.full((len(filled),), _PAD)
    discrete = codes["embed_tokens.weight"][ids].unflatten(0, (-1, _GROUP)).mean(1)
    discrete = discrete @ codes["output_matching.weight"].T
    return means + discrete if mode == "add" else means
