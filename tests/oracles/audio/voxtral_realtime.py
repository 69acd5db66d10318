"""Voxtral Realtime of transformers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.oracles.audio.heard import Heard, clips, heard, saved

PAD = 32


@heard("VoxtralRealtimeForConditionalGeneration", "VoxtralRealtimeGeneration")
@torch.no_grad()
def voxtral_realtime(folder: Path, architecture: str) -> Heard:
    """Sounds within the encoder's window, and beyond it."""
    from tests.support.tiny_voxtral_realtime import MELS, config_of

    named = "VoxtralRealtimeForConditionalGeneration"
    model = saved(folder, named, config_of(320))
    if architecture != named:
        file = folder / "config.json"
        file.write_text(file.read_text().replace(named, architecture))
    made = clips(MELS, 8, 40, 240)
    found = [model.get_audio_features(clip).pooler_output[0] for clip, _ in made]
    return Heard(made, found, _Text(model), PAD)


class _Text:
    """The language model alone, which the whole one does not run without a sound."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def get_input_embeddings(self) -> Any:
        return self._model.get_input_embeddings()

    def __call__(self, inputs_embeds: Tensor) -> Any:
        whole = self._model.model
        delay = torch.tensor([float(self._model.config.default_num_delay_tokens)])
        condition = whole.time_embedding(delay)[None]
        states = whole.language_model(inputs_embeds=inputs_embeds, t_cond=condition)
        return SimpleNamespace(logits=self._model.lm_head(states.last_hidden_state))
