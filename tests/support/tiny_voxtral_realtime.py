"""A tiny random Voxtral Realtime with a tokenizer, and what transformers writes of a recording.

Its processor is that of mistral-common, of which the tests of the audio processor are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from transformers import (
    VoxtralRealtimeConfig,
    VoxtralRealtimeFeatureExtractor,
    VoxtralRealtimeForConditionalGeneration,
)

from tests.oracles.audio.heard import randomise
from tests.support import tiny_llava

PAD, WORD, MELS, RATE = "[STREAMING_PAD]", "[STREAMING_WORD]", 20, 16_000
LEFT, DELAY = 32, 3
TOKEN = 1280
"""Samples that go along with a token."""
TEXT: dict[str, Any] = {
    **{"hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2, "head_dim": 12},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512},
    **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "sliding_window": 48},
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
SOUNDS: dict[str, Any] = {
    **{"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "head_dim": 8},
    **{"num_attention_heads": 4, "num_mel_bins": MELS, "sliding_window": 30},
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}


def config_of(vocab_size: int, **changes: Any) -> Any:
    """A config of transformers."""
    fields = {"text_config": TEXT | {"vocab_size": vocab_size}, "audio_config": SOUNDS}
    config = VoxtralRealtimeConfig(**fields | {"default_num_delay_tokens": DELAY} | changes)
    config.architectures = ["VoxtralRealtimeForConditionalGeneration"]
    return config


class TinyVoxtralRealtime:
    """Writes a checkpoint into a folder."""

    def __init__(self, folder: Path) -> None:
        self.pad = tiny_llava.save_tokenizer(folder, added=(PAD, WORD))
        self.words = Tokenizer.from_file(str(folder / "tokenizer.json"))
        config = config_of(self.words.get_vocab_size(), tie_word_embeddings=False)
        torch.manual_seed(0)
        self.model: Any = randomise(VoxtralRealtimeForConditionalGeneration(config).eval())
        with torch.no_grad():  # What is heard decides what is written.
            self.model.model.multi_modal_projector.linear_2.weight *= 12
        self.model.save_pretrained(folder)
        self.extractor = VoxtralRealtimeFeatureExtractor(feature_size=MELS)
        self.extractor.save_pretrained(folder)

    def features(self, samples: npt.NDArray[np.float32]) -> Any:
        """What the model takes of a recording, with the silence around it."""
        behind = -len(samples) % TOKEN + (DELAY + 11) * TOKEN
        padded = np.pad(samples, (LEFT * TOKEN, behind))
        made = self.extractor([padded], sampling_rate=RATE, return_tensors="pt")
        return made["input_features"]

    @torch.no_grad()
    def written(self, samples: npt.NDArray[np.float32], most: int = 1000) -> list[int]:
        """Greedy tokens of a recording: as many as it has, at most so many."""
        ids = torch.tensor([[0, *[self.pad] * (LEFT + DELAY)]])
        out = self.model.generate(
            input_ids=ids,
            input_features=self.features(samples),
            num_delay_tokens=DELAY,
            do_sample=False,
            max_new_tokens=most,
        )
        found: list[int] = out[0, ids.shape[1] :].tolist()
        return found

    def text(self, tokens: list[int]) -> str:
        """Their text, without what stands for silence."""
        return str(self.words.decode(tokens, skip_special_tokens=True))
