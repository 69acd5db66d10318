"""A tiny random Qwen3-ASR with a tokenizer, and what transformers writes after a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from transformers import (
    Qwen3ASRConfig,
    Qwen3ASRFeatureExtractor,
    Qwen3ASRForConditionalGeneration,
)

from tests.oracles.audio.heard import randomise
from tests.support import tiny_llava

PAD, MELS, RATE = "<|audio_pad|>", 20, 16_000
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'audio' %}"
    + PAD
    + "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{% if not loop.last or add_generation_prompt %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class TinyQwen3Asr:
    """Writes a checkpoint into a folder."""

    def __init__(self, folder: Path) -> None:
        token = tiny_llava.save_tokenizer(folder, TEMPLATE, (PAD,))
        self.words = Tokenizer.from_file(str(folder / "tokenizer.json"))
        text = {"model_type": "qwen3", "hidden_size": 48, "intermediate_size": 40}
        text |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
        text |= {"head_dim": 12, "vocab_size": self.words.get_vocab_size()}
        text |= {"max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 1}
        sounds = {"num_mel_bins": MELS, "d_model": 32, "encoder_layers": 2, "output_dim": 48}
        sounds |= {"encoder_attention_heads": 4, "encoder_ffn_dim": 40, "n_window": 50}
        sounds |= {"downsample_hidden_size": 8, "n_window_infer": 200}
        config = Qwen3ASRConfig(
            text_config=text,
            audio_config=sounds,
            audio_token_id=token,
            eos_token_id=1,
            pad_token_id=0,
        )
        config.architectures = ["Qwen3ASRForConditionalGeneration"]
        torch.manual_seed(0)
        self.model = randomise(Qwen3ASRForConditionalGeneration(config).eval())
        self.model.save_pretrained(folder)
        self.extractor = Qwen3ASRFeatureExtractor(feature_size=MELS)
        self.extractor.save_pretrained(folder)

    @torch.no_grad()
    def written(self, samples: npt.NDArray[np.float32], text: str, count: int) -> str:
        """Greedy text behind a rendered conversation with one recording."""
        made = self.extractor(
            samples, sampling_rate=RATE, return_attention_mask=True, return_tensors="pt"
        )
        mask = made["attention_mask"]
        features: Any = {"input_features": made["input_features"], "input_features_mask": mask}
        states = self.model.get_audio_features(**features).pooler_output
        ids = self.words.encode(text.replace(PAD, PAD * len(states))).ids
        out = self.model.generate(
            input_ids=torch.tensor([ids]), **features, max_new_tokens=count, do_sample=False
        )
        return str(self.words.decode(out[0, len(ids) :].tolist()))
