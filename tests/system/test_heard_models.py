"""Models that hear, through every service: the tokens and numbers of transformers' language models
behind the embeddings of `tests.worker.models.audio.test_towers`."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from baton_mm_preprocess.audio.decode import AudioLimits, decode
from baton_mm_preprocess.model_info import read_model
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.decoder import Model
from tests.fakes.whole_system import Whole, whole
from tests.oracles.audio.heard import makers
from tests.support import tiny_models
from tests.support.sounds import encoded, tones
from tests.support.tiny_dual_encoders import data_url, picture

COUNT = 6
FILES = [encoded(tones(seconds, seed=seed)) for seed, seconds in enumerate((0.71, 0.4))]
PICTURE = picture(30, 20)
WHISPER = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 20}
CASES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "FunAudioChatForConditionalGeneration": (("<|AUDIO|>",), WHISPER | {"chunk_length": 2}),
    "GlmAsrForConditionalGeneration": (("<|pad|>",), WHISPER | {"chunk_length": 2}),
    "GraniteSpeechForConditionalGeneration": (
        ("<|audio|>",),
        {"melspec_kwargs": {"n_mels": 8}, "projector_window_size": 6}
        | {"projector_downsample_rate": 2},
    ),
    "Gemma3nForConditionalGeneration": (
        ("<audio_soft_token>", "<end_of_audio>", "<start_of_audio>"),
        {"feature_size": 16},
    ),
    "MiDashengLMModel": (("<|AUDIO|>",), {"do_normalize": True}),
    "Phi4MMForCausalLM": (("<|endoftext11|>",), {}),
    "Qwen2_5OmniModel": (
        ("<|AUDIO|>", "<|IMAGE|>"),
        WHISPER | {"patch_size": 4, "min_pixels": 64, "max_pixels": 1024},
    ),
    "Qwen3ASRForConditionalGeneration": (("<|audio_pad|>",), {"feature_size": 20}),
    "Qwen3OmniMoeForConditionalGeneration": (("<|audio_pad|>",), WHISPER | {"feature_size": 128}),
    "UltravoxModel": (("<|audio|>",), WHISPER | {"chunk_length": 1}),
}
"""Tokens that the vocabulary has, the audio token first, and the feature extractor's settings."""


def save(folder: Path, tokens: tuple[str, ...], settings: dict[str, Any]) -> list[int]:
    """Put a tokenizer and an extractor beside a checkpoint; returns the ids of the tokens."""
    from tokenizers import Tokenizer

    tiny_models.save_tokenizer(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(list(tokens))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    ids = [tokenizer.token_to_id(token) for token in tokens]
    names = dict.fromkeys(("audio_token_id", "audio_token_index"), ids[0])
    names |= dict(zip(("eoa_token_id",), ids[1:], strict=False))
    names |= (
        dict.fromkeys(("image_token_id", "image_token_index"), ids[-1])
        if "Qwen2" in str(folder)
        else {}
    )
    file = folder / "config.json"
    file.write_text(json.dumps(_named(json.loads(file.read_text()), names)))
    return ids


def _named(config: dict[str, Any], names: dict[str, int]) -> dict[str, Any]:
    """A config with other tokens, in its parts too."""
    found = {key: names.get(key, value) for key, value in config.items()}
    return {k: _named(v, names) if isinstance(v, dict) else v for k, v in found.items()}


def heard(file: bytes) -> dict[str, Any]:
    data = base64.b64encode(file).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def ask(here: Whole, parts: list[dict[str, Any]]) -> tuple[list[int], list[int], list[float]]:
    """Prompt, answer and its log-probabilities."""
    body = {
        "model": here.model,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "one"}, *parts]}],
        **{"temperature": 0, "max_tokens": COUNT, "ignore_eos": True, "return_token_ids": True},
        "logprobs": True,
    }
    answer = here.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    choice = found["choices"][0]
    numbers = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    return found["prompt_token_ids"], choice["token_ids"], numbers


def embeddings(folder: Path, image: Any = None) -> list[Tensor]:
    """What the towers make of the files, and of an image before them."""
    loaded = load_model(folder, BuildContext(torch.device("cpu"), torch.float32))
    assert isinstance(loaded.model, Model) and loaded.model.vision
    seen = read_model(folder, "m")
    assert seen.audio is not None
    made: list[Any] = [seen.audio.processor(decode(f, 16_000, AudioLimits(9.0))) for f in FILES]
    items = [(torch.from_numpy(one.features), one.grid) for one in made]
    if image is not None:
        assert seen.images is not None
        one = seen.images.processor(image)
        items = [(torch.from_numpy(one.pixels), one.grid), *items[:1]]
    return loaded.model.vision.encode_media(*zip(*items, strict=True))


@torch.no_grad()
def continued(
    text: Any, prompt: list[int], places: Tensor, found: Tensor, positions: Tensor | None = None
) -> tuple[list[int], list[float]]:
    """What the language model of transformers writes greedily; `positions` are [3, 1, tokens]."""
    inputs = text.get_input_embeddings()(torch.tensor(prompt))
    inputs[places] = found[:, : inputs.shape[1]]
    tokens, numbers = list[int](), list[float]()
    for _ in range(COUNT):
        more = {} if positions is None else {"position_ids": positions}
        row = text(inputs_embeds=inputs[None], **more).logits[0, -1].log_softmax(-1)
        tokens.append(int(row.argmax()))
        numbers.append(float(row[tokens[-1]]))
        last = text.get_input_embeddings()(torch.tensor(tokens[-1:]))
        inputs = torch.cat((inputs, last))
        if positions is not None:
            positions = torch.cat((positions, positions.amax().expand(3, 1, 1) + 1), dim=-1)
    return tokens, numbers


@pytest.mark.row(
    "A03",
    "A04",
    "A05",
    "A06",
    "A07",
    "A08",
    "A13",
    "A14",
    "F01.33",
    "F01.34",
    "F01.35",
    "F01.36",
    "F01.37",
    "F01.38",
)
def test_answers_to_sounds(tmp_path: Path) -> None:
    """Two sounds in a message, cut by steps of 7 tokens; and again from the cache."""
    for name, (tokens, settings) in CASES.items():
        (folder := tmp_path / name).mkdir()
        text = makers()[name](folder).text
        ids = save(folder, tokens, settings)
        with whole(folder, worker={"block_size": 4, "max_num_batched_tokens": 7}) as here:
            parts = [heard(FILES[0]), {"type": "text", "text": "two"}, heard(FILES[1])]
            prompt, answer, numbers = ask(here, parts)
            found = torch.cat(embeddings(folder))
            media = ids[:2] if name.startswith("Gemma3n") else ids[:1]
            places = torch.isin(torch.tensor(prompt), torch.tensor(media))
            assert int(places.sum()) == len(found), name
            expected, scores = continued(text, prompt, places, found)
            assert answer == expected and numbers == pytest.approx(scores, abs=1e-4), name
            assert ask(here, parts)[1:] == (answer, pytest.approx(numbers, abs=1e-5)), name
            assert here.worker.encoder is not None and here.worker.encoder.num_encoded == 2
            if name.startswith("Qwen2_5"):
                _and_an_image(here, folder, text, ids)


def _and_an_image(here: Whole, folder: Path, text: Any, ids: list[int]) -> None:
    """An image before a sound: its box moves the positions of all that is behind it."""
    image = {"type": "image_url", "image_url": {"url": data_url(PICTURE)}}
    prompt, answer, numbers = ask(here, [image, heard(FILES[0])])
    found, tokens = embeddings(folder, PICTURE), torch.tensor(prompt)
    places = torch.isin(tokens, torch.tensor(ids[:2]))
    assert int(places.sum()) == sum(map(len, found))
    positions = _positions(prompt, ids[1], folder)
    expected, scores = continued(text, prompt, places, torch.cat(found), positions)
    assert answer == expected and numbers == pytest.approx(scores, abs=1e-4)


def _positions(prompt: list[int], image_token: int, folder: Path) -> Tensor:
    """int64 [3, 1, tokens] with a box in the place of the image."""
    images = read_model(folder, "m").images
    assert images is not None
    _, rows, columns = (side // 2 for side in images.processor(PICTURE).grid)
    first, count = prompt.index(image_token), rows * columns
    cells = torch.cartesian_prod(torch.arange(1), torch.arange(rows), torch.arange(columns)).T
    behind = torch.arange(len(prompt) - first - count) + first + max(rows, columns)
    parts = (torch.arange(first).expand(3, -1), cells + first, behind.expand(3, -1))
    return torch.cat(parts, dim=1).long()[:, None]
