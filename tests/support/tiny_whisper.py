"""A tiny random Whisper with a tokenizer, and what transformers makes of a recording."""

from __future__ import annotations

import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import AddedToken, Tokenizer
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTimeStampLogitsProcessor,
)
from transformers.generation import GenerateEncoderDecoderOutput

from tests.support import tiny_models

RATE, SECONDS, MELS, LENGTH = 16_000, 2, 16, 36
"""Samples per second, seconds of a chunk, bins of a spectrogram, most tokens of a sequence."""
LANGUAGES = ("en", "de", "fr", "yue")
_SPECIAL = (
    *("<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in LANGUAGES)),
    *("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>"),
    "<|notimestamps|>",
)
Samples = npt.NDArray[np.float32]


def save_whisper(
    folder: Path, length: int = LENGTH, **generation: Any
) -> WhisperForConditionalGeneration:
    """Write a checkpoint of sequences of `length` tokens, with further fields of its
    generation_config.json."""
    tiny_models.save_tokenizer(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(list(_SPECIAL))
    times = [f"<|{0.02 * step:.2f}|>" for step in range(50 * SECONDS + 1)]
    tokenizer.add_tokens([AddedToken(time, normalized=False) for time in times])
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {text: tokenizer.token_to_id(text) for text in _SPECIAL}
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    torch.manual_seed(7)
    config = WhisperConfig(
        vocab_size=tokenizer.get_vocab_size(),
        num_mel_bins=MELS,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_source_positions=50 * SECONDS,
        max_target_positions=length,
        init_std=0.3,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=start,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config).eval()
    model.generation_config = GenerationConfig(
        **{
            "bos_token_id": end,
            "eos_token_id": end,
            "pad_token_id": end,
            "decoder_start_token_id": start,
            "max_length": length,
            "is_multilingual": True,
            "lang_to_id": {f"<|{code}|>": ids[f"<|{code}|>"] for code in LANGUAGES},
            "task_to_id": {task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")},
            "no_timestamps_token_id": ids["<|notimestamps|>"],
            "prev_sot_token_id": ids["<|startofprev|>"],
            "suppress_tokens": [5, 9, start, *(ids[text] for text in _SPECIAL[-6:-1])],
            "begin_suppress_tokens": [3, end],
            "max_initial_timestamp_index": 20,
            "alignment_heads": [[0, 1], [1, 0], [1, 3]],
        }
        | generation
    )
    model.save_pretrained(folder)
    extractor().save_pretrained(folder)
    return model


def extractor() -> WhisperFeatureExtractor:
    """Spectrograms of one chunk."""
    return WhisperFeatureExtractor(feature_size=MELS, chunk_length=SECONDS)


def features(samples: Samples) -> torch.Tensor:
    """[1, MELS, frames] of a chunk, by transformers."""
    found: torch.Tensor = extractor()(
        samples, sampling_rate=RATE, return_tensors="pt"
    ).input_features
    return found


def sound(seconds: float, seed: int = 1) -> Samples:
    """Tones that change, and a little noise."""
    random, count = np.random.default_rng(seed), round(seconds * RATE)
    steps = random.uniform(100, 3000, max(1, round(seconds * 4)))
    pitch = np.repeat(steps, -(-count // len(steps)))[:count]
    wave_ = np.sin(2 * np.pi * np.cumsum(pitch) / RATE) + random.normal(0, 0.05, count)
    return (0.3 * wave_).astype(np.float32)


def wav(samples: Samples) -> bytes:
    """A file of 16 bits."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes((samples * 32767).round().astype("<i2").tobytes())
    return file.getvalue()


def heard(samples: Samples) -> Samples:
    """What is in a file of 16 bits."""
    return ((samples * 32767).round() / 32768).astype(np.float32)


class Oracle:
    """What transformers writes greedily."""

    def __init__(self, model: WhisperForConditionalGeneration) -> None:
        self.model = model
        self._ids = model.generation_config

    def language(self, samples: Samples) -> str:
        """The code of the most probable language."""
        found = int(self.model.detect_language(features(samples))[0])
        return next(str(text)[2:-2] for text, id in self._ids.lang_to_id.items() if id == found)

    def prompt(self, language: str, task: str, *, timed: bool = False) -> list[int]:
        """The prompt of a chunk."""
        own = self._ids
        ids = [own.decoder_start_token_id, own.lang_to_id[f"<|{language}|>"], own.task_to_id[task]]
        return ids if timed else [*ids, own.no_timestamps_token_id]

    def written(
        self, samples: Samples, prompt: list[int], *, timed: bool = False
    ) -> tuple[list[int], list[float]]:
        """Tokens of a chunk behind its prompt, and the log-probability of each before the rules of
        transcripts."""
        begin, own = len(prompt), self._ids
        processors: list[Any] = [
            SuppressTokensAtBeginLogitsProcessor(own.begin_suppress_tokens, begin),
            SuppressTokensLogitsProcessor(own.suppress_tokens),
        ]
        if timed:
            processors.append(WhisperTimeStampLogitsProcessor(own, begin))
        options = GenerationConfig(
            max_length=own.max_length,
            eos_token_id=own.eos_token_id,
            pad_token_id=own.pad_token_id,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        # That of Whisper would go on where the first timestamp leaves off.
        made = GenerationMixin.generate(
            self.model,
            features(samples),
            decoder_input_ids=torch.tensor([prompt]),
            logits_processor=LogitsProcessorList(processors),
            generation_config=options,
        )
        tokens = made["sequences"][0][begin:]
        logprobs = torch.cat(made["logits"]).log_softmax(-1)
        return tokens.tolist(), logprobs.gather(1, tokens[:, None])[:, 0].tolist()

    def places(self, samples: Samples, prompt: list[int], written: list[int]) -> list[float]:
        """Seconds at which the tokens of a chunk begin that it has written with timestamps, as
        `generate` with `return_token_timestamps` makes them of its attention."""
        inputs = extractor()(
            samples, sampling_rate=RATE, return_tensors="pt", return_attention_mask=True
        )
        self.model.set_attn_implementation("eager")
        given = torch.tensor([prompt + written])
        with torch.no_grad():
            made = self.model(
                inputs.input_features,
                decoder_input_ids=given[:, :-1],
                output_attentions=True,
            )
        self.model.set_attn_implementation("sdpa")
        outputs = GenerateEncoderDecoderOutput(
            sequences=given, cross_attentions=(made.cross_attentions,)
        )
        times = self.model._extract_token_timestamps(
            outputs,
            self._ids.alignment_heads,
            num_frames=inputs.attention_mask.sum(-1),
            num_input_ids=len(prompt),
        )
        seconds: list[float] = times[0, len(prompt) :].tolist()
        return seconds

    def generated(self, samples: Samples, language: str) -> list[int]:
        """Tokens of a chunk by Whisper's own `generate`."""
        made = self.model.generate(
            features(samples),
            language=language,
            task="transcribe",
            return_timestamps=False,
            do_sample=False,
        )
        tokens: list[int] = made[0].tolist()
        return tokens

    @torch.no_grad()
    def silence(self, samples: Samples, no_speech: int) -> float:
        """How probable it is that nobody speaks."""
        start = torch.tensor([[self._ids.decoder_start_token_id]])
        logits = self.model(features(samples), decoder_input_ids=start).logits[0, 0]
        return float(logits.softmax(-1)[no_speech])
