"""Every architecture against transformers: tiny random checkpoints, float32, paged."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.models import ARCHITECTURES, LoadedModel, load_model
from tests import tiny

CPU = torch.device("cpu")
ROWS = {
    "LlamaForCausalLM": "T01",
    "MistralForCausalLM": "T02",
    "Qwen2ForCausalLM": "T03",
    "Qwen3ForCausalLM": "T04",
}
TOLERANCE = 1e-3


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.row(ROWS[name])] if name in ROWS else [])
        for name in ARCHITECTURES.names()
    ],
)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, LoadedModel]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    oracle = tiny.save_checkpoint(folder, request.param)
    return oracle, load_model(folder, device=CPU, dtype=torch.float32)


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(2, tiny.VOCAB_SIZE, (length,), generator=generator).tolist()
    return ids


@torch.inference_mode()
def oracle_logits(oracle: Any, tokens: list[int]) -> torch.Tensor:
    logits: torch.Tensor = oracle(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


def oracle_greedy(oracle: Any, tokens: list[int], count: int) -> list[int]:
    """One full forward per token: no cache of the oracle's takes part."""
    tokens = list(tokens)
    for _ in range(count):
        tokens.append(int(oracle_logits(oracle, tokens)[-1].argmax()))
    return tokens[-count:]


def test_full_prefill_matches(pair: Any, driver: Any) -> None:
    oracle, loaded = pair
    tokens = prompt(100)
    ours = driver(loaded, 1).step({0: tokens})[0]
    assert (ours - oracle_logits(oracle, tokens)).abs().max() < TOLERANCE


def test_chunked_prefill_matches(pair: Any, driver: Any) -> None:
    oracle, loaded = pair
    tokens, run = prompt(50), driver(loaded, 1)
    ours = torch.cat([run.step({0: tokens[at : at + 7]})[0] for at in range(0, 50, 7)])
    assert (ours - oracle_logits(oracle, tokens)).abs().max() < TOLERANCE


def test_greedy_tokens_match(pair: Any, driver: Any) -> None:
    oracle, loaded = pair
    tokens = prompt(20)
    assert driver(loaded, 1).greedy([tokens], 32) == [oracle_greedy(oracle, tokens, 32)]


def test_ragged_batch_equals_each_row_alone(pair: Any, driver: Any) -> None:
    oracle, loaded = pair
    prompts = [prompt(length, seed=length) for length in (1, 3, 8, 9, 40, 3)]
    together = driver(loaded, len(prompts)).greedy(prompts, 32)
    assert together == [oracle_greedy(oracle, tokens, 32) for tokens in prompts]


def test_mixed_prefill_and_decode_step_matches(pair: Any, driver: Any) -> None:
    oracle, loaded = pair
    old, new = prompt(30, seed=1), prompt(25, seed=2)
    run = driver(loaded, 3)
    run.step({0: old[:-1], 2: old[:10]})
    ours = run.step({2: old[10:20], 0: old[-1:], 1: new})
    expected = oracle_logits(oracle, old)
    assert (ours[0] - expected[-1:]).abs().max() < TOLERANCE
    assert (ours[2] - expected[10:20]).abs().max() < TOLERANCE
    assert (ours[1] - oracle_logits(oracle, new)).abs().max() < TOLERANCE


@pytest.mark.row("T01")
def test_tied_llama_without_biases_matches(tmp_path: Path, driver: Any) -> None:
    oracle = tiny.save_checkpoint(
        tmp_path,
        "LlamaForCausalLM",
        attention_bias=False,
        mlp_bias=False,
        tie_word_embeddings=True,
    )
    loaded = load_model(tmp_path, device=CPU, dtype=torch.float32)
    tokens = prompt(60)
    ours = driver(loaded, 1).step({0: tokens})[0]
    assert (ours - oracle_logits(oracle, tokens)).abs().max() < TOLERANCE


def test_bfloat16_is_as_close_to_float32_as_the_oracle_in_bfloat16(
    pair: Any, driver: Any, tmp_path: Path
) -> None:
    oracle, _ = pair
    oracle.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, device=CPU, dtype=torch.bfloat16)
    tokens = prompt(40)
    exact = oracle_logits(oracle, tokens)
    rounded = oracle_logits(copy.deepcopy(oracle).to(torch.bfloat16), tokens).float()
    ours = driver(loaded, 1).step({0: tokens})[0]
    assert (ours - exact).abs().mean() < 1.5 * (rounded - exact).abs().mean()
