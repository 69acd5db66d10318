"""A real trained Llama against its golden transcript."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.layers.build_context import BuildContext

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def loaded(stories: Path) -> LoadedModel:
    return load_model(stories, BuildContext(CPU, torch.float32))


@pytest.fixture(scope="module")
def cases(assets: Path) -> list[dict[str, Any]]:
    golden = json.loads((assets / "stories260k" / "golden_greedy.json").read_text())
    cases: list[dict[str, Any]] = golden["cases"]
    return cases


def transcript(run: Any, case: dict[str, Any]) -> tuple[list[int], list[float]]:
    """Greedy ids and the log-probability of each."""
    ids: list[int] = []
    logprobs: list[float] = []
    new = case["prompt_ids"]
    for _ in case["output_ids"]:
        values = run.step({0: new})[0][-1].log_softmax(-1)
        new = [int(values.argmax())]
        ids += new
        logprobs.append(float(values[new[0]]))
    return ids, logprobs


@pytest.mark.row("T01")
def test_greedy_ids_and_logprobs_are_golden(
    loaded: LoadedModel, cases: list[dict[str, Any]], driver: Any
) -> None:
    for case in cases:
        ids, logprobs = transcript(driver(loaded, 1, pages_per_row=128), case)
        assert ids == case["output_ids"]
        assert logprobs == pytest.approx(case["logprobs"], abs=1e-4)


@pytest.mark.row("T01")
def test_all_cases_in_one_batch_are_golden(
    loaded: LoadedModel, cases: list[dict[str, Any]], driver: Any
) -> None:
    count = min(len(case["output_ids"]) for case in cases)
    run = driver(loaded, len(cases), pages_per_row=128)
    outputs = run.greedy([case["prompt_ids"] for case in cases], count)
    assert outputs == [case["output_ids"][:count] for case in cases]


def test_facts_about_the_model(loaded: LoadedModel) -> None:
    assert (loaded.max_length, loaded.vocab_size, loaded.eos_token_ids) == (512, 512, (2,))
    assert loaded.config.num_hidden_layers == len(loaded.spec.layers) == 5
