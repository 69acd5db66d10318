"""MiDashengLM, which transformers does not have: a plain re-computation of its encoder from the
published description (arXiv:2406.06992, arXiv:2508.03983), and Qwen2 of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from tests.oracles.audio.conformers import TEXT
from tests.oracles.audio.heard import Grid, Heard, clips, heard, randomise

_BINS, _SIZE, _HIDDEN, _HEADS, _STACK, _WINDOW = 16, 4, 24, 2, 3, 8
_ENCODER: dict[str, Any] = {
    **{"embed_dim": _HIDDEN, "depth": 2, "num_heads": _HEADS, "mlp_ratio": 2.0, "qkv_bias": True},
    **{"init_values": 0.1, "patch_size": [_BINS, _SIZE], "patch_stride": [_BINS, _SIZE]},
    **{"target_length": _SIZE * _WINDOW + 2, "n_mels": _BINS, "input_channels": 1},
}
_WEIGHTS = {
    **{"init_bn.weight": (_BINS,), "init_bn.bias": (_BINS,), "init_bn.running_mean": (_BINS,)},
    **{"init_bn.running_var": (_BINS,), "patch_embed.proj.weight": (_HIDDEN, 1, _BINS, _SIZE)},
    **{"patch_embed.proj.bias": (_HIDDEN,), "time_pos_embed": (1, _HIDDEN, 1, _WINDOW)},
    **{"freq_pos_embed": (1, _HIDDEN, 1, 1), "norm.weight": (_HIDDEN,), "norm.bias": (_HIDDEN,)},
}
_LAYER = {
    **{"norm1.weight": (_HIDDEN,), "norm1.bias": (_HIDDEN,), "norm2.weight": (_HIDDEN,)},
    **{"norm2.bias": (_HIDDEN,), "ls1.gamma": (_HIDDEN,), "ls2.gamma": (_HIDDEN,)},
    **{"attn.qkv.weight": (3 * _HIDDEN, _HIDDEN), "attn.qkv.bias": (3 * _HIDDEN,)},
    **{"attn.proj.weight": (_HIDDEN, _HIDDEN), "attn.proj.bias": (_HIDDEN,)},
    **{"mlp.fc1.weight": (2 * _HIDDEN, _HIDDEN), "mlp.fc1.bias": (2 * _HIDDEN,)},
    **{"mlp.fc2.weight": (_HIDDEN, 2 * _HIDDEN), "mlp.fc2.bias": (_HIDDEN,)},
}
Weights = dict[str, Tensor]


@heard("MiDashengLMModel")
@torch.no_grad()
def midasheng_lm(folder: Path, architecture: str) -> Heard:
    """Sounds in one window, with a last state that is not seen, and in several windows."""
    import transformers

    torch.manual_seed(0)
    wide = TEXT["hidden_size"]
    shapes = _WEIGHTS | {f"blocks.{n}.{k}": s for n in range(2) for k, s in _LAYER.items()}
    own = {name: 0.3 * torch.randn(shape) for name, shape in shapes.items()}
    own["init_bn.running_var"] = own["init_bn.running_var"].abs() + 0.5
    net = {"net.0.weight": (wide, _STACK * _HIDDEN), "net.0.bias": (wide,)}
    net |= {"net.2.weight": (wide, wide), "net.2.bias": (wide,)}
    projector = {name: 0.2 * torch.randn(shape) for name, shape in net.items()}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2]}
    text = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**TEXT, rope_theta=1e4))
    parts = {"audio_encoder": own, "audio_projector": projector}
    parts["decoder"] = randomise(text).eval().state_dict()
    tensors = {f"{part}.{name}": t.clone() for part, of in parts.items() for name, t in of.items()}
    tensors["audio_encoder.front_end.0.spectrogram.window"] = torch.ones(4)
    tensors["audio_encoder.init_bn.num_batches_tracked"] = torch.tensor(3)
    save_file(tensors, folder / "model.safetensors")
    config = {
        **{"architectures": [architecture], "model_type": "midashenglm", "audio_token_id": 319},
        **{"audio_encoder_config": _ENCODER, "subsample_factor": _STACK},
        "text_config": TEXT
        | {"model_type": "qwen2_5_omni_text", "rope_scaling": rope, "rope_theta": 1e4},
    }
    (folder / "config.json").write_text(json.dumps(config))
    made = list[tuple[Tensor, int]]()
    for hops in (12, 23, 32, 47, 64 + 7):
        frames = (hops + 1) // _SIZE * _SIZE
        made.append((clips(_BINS, frames)[0][0][0], hops))
    found = [embeddings(own, projector, clip, hops) for clip, hops in made]
    return Heard([_windows(clip, hops) for clip, hops in made], found, text)


def _windows(clip: Tensor, hops: int) -> tuple[Tensor, Grid]:
    size, frames = _SIZE * _WINDOW, clip.shape[1]
    if frames <= size:
        return clip[None], (1, hops, 0)
    padded = F.pad(clip, (0, -frames % size))
    windows = padded.unflatten(1, (-1, size)).transpose(0, 1).contiguous()
    return windows, (len(windows), hops, 0)


def embeddings(own: Weights, projector: Weights, clip: Tensor, hops: int) -> Tensor:
    """[bins, frames] of a sound that fills so many hops, to [embeddings, hidden]."""
    mean, var = (own[f"init_bn.running_{part}"][:, None] for part in ("mean", "var"))
    scale, bias = (own[f"init_bn.{part}"][:, None] for part in ("weight", "bias"))
    x = (clip - mean) / (var + 1e-5).sqrt() * scale + bias
    patches = x.unflatten(1, (-1, _SIZE)).permute(1, 0, 2).flatten(1)
    states = patches @ own["patch_embed.proj.weight"].flatten(1).T + own["patch_embed.proj.bias"]
    seen = torch.arange(len(states)) < hops // _SIZE
    pairs = zip(torch.split(states, _WINDOW), torch.split(seen, _WINDOW), strict=True)
    x = torch.cat([_encoded(own, window, keys) for window, keys in pairs])
    x = x[: len(x) // _STACK * _STACK].reshape(-1, _STACK * _HIDDEN)
    x = F.gelu(x @ projector["net.0.weight"].T + projector["net.0.bias"])
    return x @ projector["net.2.weight"].T + projector["net.2.bias"]


def _encoded(own: Weights, x: Tensor, keys: Tensor) -> Tensor:
    """The states of one window, of which `keys` are seen."""
    x = x + own["time_pos_embed"][0, :, 0, : len(x)].T + own["freq_pos_embed"][0, :, 0].T
    for layer in range(2):
        part = {n.split(".", 2)[2]: t for n, t in own.items() if n.startswith(f"blocks.{layer}.")}
        normed = F.layer_norm(x, (_HIDDEN,), part["norm1.weight"], part["norm1.bias"], 1e-6)
        x = x + _attended(part, normed, keys) * part["ls1.gamma"]
        normed = F.layer_norm(x, (_HIDDEN,), part["norm2.weight"], part["norm2.bias"], 1e-6)
        inner = F.gelu(normed @ part["mlp.fc1.weight"].T + part["mlp.fc1.bias"])
        x = x + (inner @ part["mlp.fc2.weight"].T + part["mlp.fc2.bias"]) * part["ls2.gamma"]
    return F.layer_norm(x, (_HIDDEN,), own["norm.weight"], own["norm.bias"], 1e-6)


def _attended(part: Weights, x: Tensor, keys: Tensor) -> Tensor:
    qkv = x @ part["attn.qkv.weight"].T + part["attn.qkv.bias"]
    q, k, v = qkv.view(len(x), 3, _HEADS, -1).permute(1, 2, 0, 3)
    scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
    shares = scores.masked_fill(~keys, float("-inf")).softmax(-1)
    joined = (shares @ v).transpose(0, 1).flatten(1)
    return joined @ part["attn.proj.weight"].T + part["attn.proj.bias"]
