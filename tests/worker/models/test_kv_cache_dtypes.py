"""Quantised KV caches: change of logits and perplexity, and invariants."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from baton.checkpoint.gguf_header import read_metadata
from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kernels.kv_codes import CODES
from baton_worker.layers.attention import gqa
from baton_worker.layers.build_context import BuildContext
from tests.support import tiny_models

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Bounds:
    """Of the norm of all logits, and of perplexity: how much of it a kind of code may change."""

    logits: float
    perplexity: float


BOUNDS = {"fp8": Bounds(0.06, 0.03), "int8": Bounds(0.03, 0.01)}
each_kind = pytest.mark.parametrize(
    "kind",
    [
        pytest.param("fp8", marks=pytest.mark.row("F12.05")),
        pytest.param("int8", marks=pytest.mark.row("F12.06")),
    ],
)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def logits(driver: Any, path: Path, dtype: torch.dtype, kind: str, texts: list[list[int]]) -> Any:
    """Of each text, run whole."""
    codes = CODES.get(kind)
    loaded = load_model(path, BuildContext(CPU, dtype, codes=codes))
    run = driver(loaded, len(texts), page_size=16, codes=codes)
    return [run.step({row: text})[row] for row, text in enumerate(texts)]


def perplexity(answers: list[torch.Tensor], texts: list[list[int]]) -> float:
    told = torch.cat([answer[:-1] for answer in answers])
    return float(F.cross_entropy(told, torch.tensor([t for x in texts for t in x[1:]])).exp())


def check(
    driver: Any,
    path: Path,
    dtype: torch.dtype,
    kind: str,
    texts: list[list[int]],
    plain: list[torch.Tensor],
) -> None:
    """`plain`: the logits with keys and values as they are."""
    coded = logits(driver, path, dtype, kind, texts)
    before, after = torch.cat(plain), torch.cat(coded)
    change = float((after - before).norm() / before.norm())
    assert 0 < change < BOUNDS[kind].logits
    was = perplexity(plain, texts)
    assert abs(perplexity(coded, texts) - was) < BOUNDS[kind].perplexity * was


@each_kind
@each_dtype
def test_stories_stay_close(
    driver: Any, stories: Path, assets: Path, dtype: torch.dtype, kind: str
) -> None:
    cases = json.loads((assets / "stories260k" / "golden_greedy.json").read_text())["cases"]
    texts = [case["prompt_ids"] + case["output_ids"] for case in cases]
    plain = logits(driver, stories, dtype, "auto", texts)
    check(driver, stories, dtype, kind, texts, plain)


@pytest.fixture(scope="module")
def questions(smollm2: Path, assets: Path) -> list[list[int]]:
    """Real ones, as tokens of the default model."""
    path = assets / "prompts" / "mt_bench_question.jsonl"
    texts = [json.loads(line)["turns"][0] for line in path.read_text().splitlines()[:12:3]]
    tokenizer = vocabulary(smollm2)
    return [tokenizer.encode(text).ids for text in texts]


@pytest.fixture(scope="module")
def uncoded(driver: Any, smollm2: Path, questions: list[list[int]]) -> list[torch.Tensor]:
    """The default model's logits without codes: once for all kinds."""
    return logits(driver, smollm2, torch.bfloat16, "auto", questions)


@each_kind
def test_the_default_model_stays_close(
    driver: Any,
    smollm2: Path,
    questions: list[list[int]],
    uncoded: list[torch.Tensor],
    kind: str,
) -> None:
    check(driver, smollm2, torch.bfloat16, kind, questions, uncoded)


def vocabulary(path: Path) -> Any:
    """The byte-level BPE vocabulary inside the GGUF file."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    metadata = read_metadata(path)
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


@each_kind
@each_dtype
def test_logits_do_not_depend_on_the_batch_or_on_where_a_prompt_is_cut(
    driver: Any, stories: Path, dtype: torch.dtype, kind: str
) -> None:
    if CpuLinear.refuses(torch.zeros(1, 1)) is not None:
        pytest.skip("the CPU kernels cannot be built here: oneDNN's choose by the number of rows")
    codes = CODES[kind]
    loaded = load_model(stories, BuildContext(CPU, dtype, codes=codes))
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(3, 500, (n,), generator=generator).tolist() for n in (5, 64, 33, 2)]

    def fresh(rows: int) -> Any:
        return driver(loaded, rows, page_size=16, codes=codes)

    together = fresh(len(texts))
    prefilled = together.step(dict(enumerate(texts)))
    decoded = together.step({row: [7] for row in range(len(texts))})
    for row, text in enumerate(texts):
        alone = fresh(1)
        assert torch.equal(alone.step({0: text})[0], prefilled[row])
        assert torch.equal(alone.step({0: [7]})[0], decoded[row])
    for cut in (1, 16, 40, 63):
        parts = fresh(1)
        pieces = [parts.step({0: part})[0] for part in (texts[1][:cut], texts[1][cut:])]
        assert torch.equal(torch.cat(pieces), prefilled[1]), f"cut at {cut}"


@each_kind
def test_without_the_kernels_the_same_is_kept(
    driver: Any, stories: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes, text = CODES[kind], list(range(3, 60))
    pages = []
    for _ in range(2):
        loaded = load_model(stories, BuildContext(CPU, torch.float32, codes=codes))
        run = driver(loaded, 1, codes=codes)
        run.step({0: text})
        pages.append(codes.decode(run.cache.layers[0], torch.float32))
        monkeypatch.setattr(gqa, "refuses", lambda *_: "not today")
    torch.testing.assert_close(pages[0], pages[1], rtol=0.13, atol=1e-2)


@each_kind
def test_latents_are_refused(tmp_path: Path, kind: str) -> None:
    tiny_models.save_checkpoint(tmp_path, "DeepseekV3ForCausalLM")
    with pytest.raises(ModelError, match=f"latents as {kind}.*--kv-cache-dtype auto"):
        load_model(tmp_path, BuildContext(CPU, torch.float32, codes=CODES[kind]))


@each_kind
def test_what_runs_in_the_code_of_transformers_is_refused(tmp_path: Path, kind: str) -> None:
    tiny_models.save_checkpoint(tmp_path, tiny_models.EXAMPLE_UNLISTED)
    with pytest.raises(ModelError, match=f"only a spec can have {kind} pages"):
        load_model(tmp_path, BuildContext(CPU, torch.float32, codes=CODES[kind]))


@each_kind
@pytest.mark.parametrize("name", ["Gemma2ForCausalLM", "Qwen3ForCausalLM", "Phi3ForCausalLM"])
def test_other_families_stay_close(tmp_path: Path, driver: Any, name: str, kind: str) -> None:
    tiny_models.save_checkpoint(tmp_path, name)
    text = torch.randint(2, 60, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    plain = logits(driver, tmp_path, torch.float32, "auto", [text])[0]
    coded = logits(driver, tmp_path, torch.float32, kind, [text])[0]
    # Random weights carry a change on as no trained model does.
    assert 0 < (coded - plain).norm() < 0.2 * plain.norm()
