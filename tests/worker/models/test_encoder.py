"""The forward loop of encoders; parity of each architecture is proven through its endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.encoder import EncoderModel
from tests.support import tiny_encoders

CPU = torch.device("cpu")
ARCHITECTURES = (
    *("BertModel", "RobertaModel", "GteModel", "NomicBertModel", "ModernBertModel"),
    "Gemma3TextModel",
)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, LoadedModel]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    oracle = tiny_encoders.save(folder, request.param)
    return oracle, load_model(folder, BuildContext(CPU, torch.float32))


def encode(loaded: LoadedModel, texts: list[list[int]], second: int = 0) -> torch.Tensor:
    assert isinstance(loaded.model, EncoderModel)
    tokens = torch.tensor([token for text in texts for token in text])
    positions = torch.cat([torch.arange(len(text)) for text in texts])
    types = (positions >= second).long() if second else torch.zeros_like(positions)
    return loaded.model.encode(tokens, positions, [len(text) for text in texts], types)


def texts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(5, 320, (length,), generator=generator).tolist()
        for length in (7, 1, 40, 7, 23)
    ]


@torch.inference_mode()
def test_states_of_a_ragged_batch(pair: tuple[Any, LoadedModel]) -> None:
    oracle, loaded = pair
    together = encode(loaded, texts()).split([len(text) for text in texts()])
    for text, ours in zip(texts(), together, strict=True):
        expected = oracle(torch.tensor([text])).last_hidden_state[0]
        assert (ours - expected).abs().max() < 1e-3
        assert (ours - encode(loaded, [text])).abs().max() < 1e-5


@pytest.mark.parametrize("architecture", ["BertModel", "NomicBertModel"])
@torch.inference_mode()
def test_token_types_of_a_pair(tmp_path: Path, architecture: str) -> None:
    oracle = tiny_encoders.save(tmp_path, architecture)
    loaded = load_model(tmp_path, BuildContext(CPU, torch.float32))
    text = texts()[2]
    types = torch.tensor([[0] * 9 + [1] * 31])
    expected = oracle(torch.tensor([text]), token_type_ids=types).last_hidden_state[0]
    assert (encode(loaded, [text], second=9) - expected).abs().max() < 1e-3
    assert (encode(loaded, [text]) - expected).abs().max() > 1e-2


def test_progress_counts_layers(pair: tuple[Any, LoadedModel]) -> None:
    _, loaded = pair
    before = loaded.model.progress
    encode(loaded, texts())
    assert loaded.model.progress == before + 3


def test_bfloat16_is_close(tmp_path: Path) -> None:
    oracle = tiny_encoders.save(tmp_path, "BertModel")
    loaded = load_model(tmp_path, BuildContext(CPU, torch.bfloat16))
    text = texts()[2]
    with torch.inference_mode():
        exact = oracle(torch.tensor([text])).last_hidden_state[0]
        rounded = oracle.to(torch.bfloat16)(torch.tensor([text])).last_hidden_state[0].float()
    ours = encode(loaded, [text]).float()
    assert (ours - exact).abs().mean() < 1.5 * (rounded - exact).abs().mean()
