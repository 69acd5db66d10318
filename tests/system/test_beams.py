"""Beam search of the whole system in fp32 equals that of transformers, token for token."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from tests.support.served_system import Served, until
from tests.support.tiny_models import save_checkpoint, save_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.row("F09.11")]
EOS, FIRST_TEXT, VOCAB_SIZE = 1, 6, 280
STOPS = [40, 41, 42, 43, 44, 45, 46, 47]
"""Without them a random model hardly ever ends."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("beams") / "tiny"
    path.mkdir()
    return save_tokenizer(path)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return save_checkpoint(folder, "LlamaForCausalLM", seed=3, vocab_size=VOCAB_SIZE)


@pytest.fixture(scope="module")
def served(
    folder: Path, reference: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    flags = ("--worker.dtype", "float32", "--worker.threads", "1")
    system = Served(tmp_path_factory.mktemp("served"), folder, *flags)
    try:
        yield system.ready()
    finally:
        system.close()


@pytest.mark.parametrize("early", [False, True, "never"])
@pytest.mark.parametrize(("width", "penalty"), [(1, 1.0), (3, 1.0), (3, 0.0), (3, 2.0), (5, -1.0)])
def test_equals_transformers(
    served: Served, reference: Any, width: int, penalty: float, early: bool | str
) -> None:
    random = Random(f"{width}{penalty}{early}")
    for _ in range(2):
        prompt = [random.randrange(FIRST_TEXT, VOCAB_SIZE) for _ in range(random.randint(1, 40))]
        answer = served.complete(
            prompt=prompt,
            use_beam_search=True,
            n=width,
            length_penalty=penalty,
            early_stopping=early,
            stop_token_ids=STOPS,
            max_tokens=24,
            return_token_ids=True,
            logprobs=1,
        ).json()
        wanted = expected(reference, prompt, width, penalty, early)
        choices = answer["choices"]
        assert [choice["token_ids"] for choice in choices] == [tokens for tokens, _ in wanted]
        for choice, (tokens, score) in zip(choices, wanted, strict=True):
            assert choice["finish_reason"] == ("stop" if tokens[-1] in (EOS, *STOPS) else "length")
            total = sum(choice["logprobs"]["token_logprobs"])
            assert total / len(tokens) ** penalty == pytest.approx(score, abs=1e-3)


def expected(
    model: Any, prompt: list[int], width: int, penalty: float, early: bool | str
) -> list[tuple[list[int], float]]:
    """Tokens and scores of transformers' outputs, best first."""
    if width == 1:
        return [greedy(model, prompt)]
    found = model.generate(
        torch.tensor([prompt]),
        num_beams=width,
        num_return_sequences=width,
        length_penalty=penalty,
        early_stopping=early,
        max_new_tokens=24,
        eos_token_id=[EOS, *STOPS],
        pad_token_id=0,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
    )
    outputs = []
    for row, score in zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True):
        tokens = row[len(prompt) :]
        ends = [i for i, token in enumerate(tokens) if token in (EOS, *STOPS)]
        outputs.append((tokens[: ends[0] + 1] if ends else tokens, score))
    return outputs


def greedy(model: Any, prompt: list[int]) -> tuple[list[int], float]:
    tokens: list[int] = []
    total = 0.0
    while len(tokens) < 24 and not set(tokens) & {EOS, *STOPS}:
        with torch.inference_mode():
            values = model(torch.tensor([prompt + tokens])).logits[0, -1].log_softmax(0)
        tokens.append(int(values.argmax()))
        total += float(values.max())
    return tokens, total / len(tokens)


def test_some_outputs_end_and_some_do_not(served: Served) -> None:
    """The comparison above has met both."""
    reasons = {
        choice["finish_reason"]
        for prompt in ([10, 20], [100], [200, 201, 202], [77])
        for choice in served.complete(
            prompt=prompt, use_beam_search=True, n=3, max_tokens=12, stop_token_ids=STOPS
        ).json()["choices"]
    }
    assert reasons == {"stop", "length"}


def test_together_equals_one_by_one(served: Served) -> None:
    """Searches of different widths, beside requests that sample."""
    mixed: list[dict[str, Any]] = [
        {"use_beam_search": True, "n": 3, "length_penalty": 0.0},
        {"temperature": 1.0, "seed": 5, "n": 2},
        {"use_beam_search": True, "beam_width": 5, "early_stopping": True},
        {},
        {"use_beam_search": True, "prompt": [[9, 8, 7], [60]], "n": 2},
    ]

    def tokens(fields: dict[str, Any]) -> list[list[int]]:
        given = {"prompt": [30, 31, 32], "max_tokens": 16, "stop_token_ids": STOPS}
        answer = served.complete(**given | {"return_token_ids": True} | fields).json()
        return [choice["token_ids"] for choice in answer["choices"]]

    alone = [tokens(fields) for fields in mixed]
    with ThreadPoolExecutor(len(mixed)) as pool:
        assert list(pool.map(tokens, mixed)) == alone


def test_the_default_is_no_search(served: Served) -> None:
    plain = served.complete(prompt=[10, 20], max_tokens=6, return_token_ids=True).json()
    beam = served.complete(
        prompt=[10, 20], max_tokens=6, return_token_ids=True, use_beam_search=True
    ).json()
    assert plain["choices"][0]["token_ids"] == beam["choices"][0]["token_ids"]
    until(lambda: served.pages_held() == 0, "all pages are free again")
