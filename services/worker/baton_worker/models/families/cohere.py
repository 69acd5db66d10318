"""Command R: parallel blocks, LayerNorm without bias, interleaved rope, scaled logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baton_worker.models.families.common import (
    Config,
    architecture,
    decoder,
    glu,
    gqa,
    layer_norm,
    rotating_windows,
)
from baton_worker.spec import (
    Attention,
    Decoder,
    Head,
    Mixer,
    Norm,
    QkNorm,
)


@architecture("CohereForCausalLM")
def cohere(c: Config) -> Decoder:
    normed = QkNorm(_norm(c), over="each") if getattr(c, "use_qk_norm", False) else None
    return _parallel(c, _heads(c, base=500_000.0, qk_norm=normed))


@architecture("Cohere2ForCausalLM")
def cohere2(c: Config) -> Decoder:
    every = getattr(c, "sliding_window_pattern", 4)
    window = getattr(c, "sliding_window", 4096)
    return _parallel(c, rotating_windows(c, _heads(c), window, every))


def _norm(c: Config) -> Norm:
    return layer_norm(getattr(c, "layer_norm_eps", 1e-5), bias=False)


def _heads(c: Config, **changes: Any) -> Attention:
    bias = getattr(c, "attention_bias", False)
    return gqa(c, interleaved=True, bias=bias, output_bias=bias, **changes)


def _parallel(c: Config, mixers: Mixer | Sequence[Mixer]) -> Decoder:
    head = Head(scale=getattr(c, "logit_scale", 0.0625))
    return decoder(c, mixers, glu(c), tied=True, norm=_norm(c), style="parallel", head=head)
