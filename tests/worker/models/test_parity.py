"""Every architecture against its oracle: tiny random checkpoints, float32, paged.

The oracle is transformers where it has the class, else one of `tests/oracles`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.layers.build_context import BuildContext
from baton_worker.models import ARCHITECTURES
from baton_worker.models.decoder import Model
from baton_worker.spec import SparseLatentAttention
from baton_worker.spec.decoder import ROUTED
from tests.fakes.two_ranks import TwoRanks
from tests.oracles import mixtures as _mixture_oracles  # noqa: F401 - fills MAKERS
from tests.oracles import ropes
from tests.oracles.audio import heard
from tests.oracles.checkpoints import MAKERS, Oracle, asked
from tests.oracles.towers import sights
from tests.support import (
    delta_net_models,
    moe_models,
    state_space_models,
    tiny_audio,
    tiny_models,
    tiny_towers,
)

CPU = torch.device("cpu")
ROWS = {
    "LlamaForCausalLM": "T01",
    "MistralForCausalLM": "T02",
    "Qwen2ForCausalLM": "T03",
    "Qwen3ForCausalLM": "T04",
    "GemmaForCausalLM": "T05",
    "Gemma2ForCausalLM": "T06",
    "Gemma3ForCausalLM": "T07",
    "Phi3ForCausalLM": "T08",
    "PhiForCausalLM": "T09",
    "OlmoForCausalLM": "T10",
    "Olmo2ForCausalLM": "T11",
    "BaichuanForCausalLM": "T12",
    "BaiChuanForCausalLM": "T13",
    "InternLM2ForCausalLM": "T14",
    "CohereForCausalLM": "T15",
    "GPTNeoXForCausalLM": "T16",
    "StableLMEpochForCausalLM": "T17",
    "Starcoder2ForCausalLM": "T18",
    "BloomForCausalLM": "T19",
    "FalconForCausalLM": "T20",
    "GPT2LMHeadModel": "T21",
    "OPTForCausalLM": "T22",
    "ExaoneForCausalLM": "T23",
    "Exaone4ForCausalLM": "T24",
    "PersimmonForCausalLM": "T25",
    "MPTForCausalLM": "T26",
    "SeedOssForCausalLM": "T27",
    "Ernie4_5ForCausalLM": "T28",
    "HunYuanDenseV1ForCausalLM": "T29",
    "PanguEmbeddedForCausalLM": "T30",
    "MiMoForCausalLM": "T31",
    "MiniCPMForCausalLM": "T32",
    "GraniteForCausalLM": "T33",
    "Glm4ForCausalLM": "T34",
    "OrionForCausalLM": "T35",
    "SolarForCausalLM": "T36",
    "TeleChat2ForCausalLM": "T37",
    "TeleFLMForCausalLM": "T38",
    "Fairseq2LlamaForCausalLM": "T39",
    "DeciLMForCausalLM": "T40",
    "NemotronNASForCausalLM": "T41",
    "NemotronForCausalLM": "T42",
    "MambaForCausalLM": "S01",
}
ROWS |= moe_models.ROWS | state_space_models.ROWS | delta_net_models.ROWS
ODDITIES = {"MiMoV2FlashForCausalLM": ["F23.08"], "LongcatFlashForCausalLM": ["F23.11"]}
"""Further rows, of what these alone do."""
TOLERANCE = 1e-3
FEW, MANY = 8, 20
"""Tokens to decode: few cross two borders of pages, many those of windows and chunks too."""
PLACEMENTS = ("linear", "round_robin")
_GROUPS = 6
"""Groups of relatives, each of which one test compares."""


@dataclass(frozen=True, eq=False)
class Case:
    """One architecture in one form. It has a hash, by which pytest groups the tests of a pair."""

    architecture: str
    changes: dict[str, Any] = field(default_factory=dict)

    def make(self, folder: Path) -> tuple[Oracle, Any]:
        """Write the checkpoint; returns its oracle, and the transformers model if it is one."""
        if self.architecture in MAKERS:
            return MAKERS[self.architecture](folder), None
        model = tiny_models.save_checkpoint(folder, self.architecture, **self.changes)
        return asked(model), model


@cache
def cases() -> list[Any]:
    """Each case once: what is built of it serves every test that names it."""
    return list(_cases())


def _cases() -> Iterator[Any]:
    towers = (
        tiny_towers.ARCHITECTURES.keys()
        | sights.makers().keys()
        | tiny_audio.makers().keys()
        | heard.makers().keys()
    )
    for name in sorted({*ARCHITECTURES.names()} - towers - tiny_models.RELATIVES.keys()):
        rows = [ROWS[name], *ODDITIES.get(name, ())] if name in ROWS else []
        marks = [pytest.mark.row(*rows)] if rows else []
        yield pytest.param(Case(name), id=name, marks=marks)
        for number, changes in enumerate(tiny_models.VARIANTS.get(name, []), start=2):
            yield pytest.param(Case(name, changes), id=f"{name}-{number}", marks=marks)

    for name, row in ropes.ROWS.items():
        yield pytest.param(Case(name), id=name, marks=[pytest.mark.row(row)])

    for name in tiny_models.UNLISTED:
        if name not in ARCHITECTURES:
            yield pytest.param(Case(name), id=f"{name}-by-transformers")


def relatives() -> Iterator[Case]:
    """The cases of a test that compares several each."""
    for name in tiny_models.RELATIVES:
        for changes in ({}, *tiny_models.VARIANTS.get(name, ())):
            yield Case(name, changes)


def with_a_spec() -> Iterator[Any]:
    """The cases of architectures that are not left to transformers."""
    known = {*ARCHITECTURES.names(), *ropes.ROWS}
    return (case for case in cases() if case.values[0].architecture in known)


def of_experts() -> Iterator[Any]:
    """The cases of mixtures whose experts have gates of their own."""
    dense = {"MiniCPM3ForCausalLM", "Lfm2ForCausalLM"}
    mixed = (moe_models.TRAITS.keys() | moe_models.ROWS.keys()) - dense
    yield from (case for case in with_a_spec() if case.values[0].architecture in mixed)
    for case in with_a_spec():
        name, changes = case.values[0].architecture, case.values[0].changes
        traits = (state_space_models.TRAITS | delta_net_models.TRAITS).get(name, {}) | changes
        counts = ("num_local_experts", "n_routed_experts", "num_experts")
        if any(traits.get(count) for count in counts):
            yield case


@cache
def placements() -> dict[Case, str]:
    """The cases `of_experts`, each under one placement in turn: none looks at the router."""
    turns = itertools.cycle(PLACEMENTS)
    return {case.values[0]: next(turns) for case in of_experts()}


def placed() -> Iterator[Any]:
    """Those cases. A placement is no parameter: pytest would group tests by it, not by pairs."""
    for case in of_experts():
        name = f"{placements()[case.values[0]]}-{case.id}"
        yield pytest.param(case.values[0], id=name, marks=case.marks)


def in_transformers() -> Iterator[Any]:
    """The cases whose oracle is a model of transformers."""
    return (case for case in cases() if case.values[0].architecture not in MAKERS)


@dataclass(frozen=True)
class Pair:
    """A loaded model and what it must answer."""

    case: Case
    oracle: Oracle
    model: Any
    loaded: LoadedModel
    folder: Path


@pytest.fixture(scope="module", params=cases())
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return made(request.param, tmp_path_factory.mktemp(request.param.architecture))


def made(case: Case, folder: Path) -> Pair:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        oracle, model = case.make(folder)
    loaded = load_model(folder, BuildContext(CPU, torch.float32))
    return Pair(case, remembered(oracle), model, loaded, folder)


def remembered(oracle: Oracle) -> Oracle:
    """An oracle that computes each answer once: the tests of a pair share prompts."""
    answers = cache(lambda tokens: oracle([*tokens]))
    return lambda tokens: answers(tuple(tokens))


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(
        2, tiny_models.VOCAB_SIZE, (length,), generator=generator
    ).tolist()
    return ids


def assert_close(ours: torch.Tensor, expected: torch.Tensor) -> None:
    assert (ours - expected).abs().max() < TOLERANCE


def assert_greedy(oracle: Oracle, tokens: list[int], continuation: list[int]) -> None:
    """Each token is the oracle's most likely one after those before it."""
    logits = oracle(tokens + continuation[:-1])[len(tokens) - 1 :]
    assert logits.argmax(-1).tolist() == continuation


@pytest.mark.row("F22.02")
def test_full_prefill_matches(pair: Pair, driver: Any) -> None:
    tokens, run = prompt(100), driver(pair.loaded, 1)
    expected, ours = pair.oracle(tokens), run.step({0: tokens})
    assert expected.std() > 0.05
    assert_close(ours[0], expected)
    assert_greedy(pair.oracle, tokens, *run.decode(ours, FEW))


def test_chunked_prefill_matches(pair: Pair, driver: Any) -> None:
    tokens, run = prompt(50), driver(pair.loaded, 1)
    chunks = [run.step({0: tokens[at : at + 7]}) for at in range(0, 50, 7)]
    assert_close(torch.cat([chunk[0] for chunk in chunks]), pair.oracle(tokens))
    assert_greedy(pair.oracle, tokens, *run.decode(chunks[-1], FEW))


def test_ragged_batch_continues_as_each_row_alone(pair: Pair, driver: Any) -> None:
    prompts = [prompt(length, seed=length) for length in (1, 3, 8, 17, 46, 3)]
    together = driver(pair.loaded, len(prompts)).greedy(prompts, MANY)
    for tokens, continuation in zip(prompts, together, strict=True):
        assert_greedy(pair.oracle, tokens, continuation)


def test_mixed_prefill_and_decode_step_matches(pair: Pair, driver: Any) -> None:
    old, new = prompt(30, seed=1), prompt(25, seed=2)
    run = driver(pair.loaded, 3)
    run.step({0: old[:-1], 2: old[:10]})
    ours = run.step({2: old[10:20], 0: old[-1:], 1: new})
    expected = pair.oracle(old)
    assert_close(ours[0], expected[-1:])
    assert_close(ours[2], expected[10:20])
    assert_close(ours[1], pair.oracle(new))


def test_shared_pages_serve_a_second_sequence(pair: Pair, driver: Any) -> None:
    shared, first, second = prompt(24, seed=3), prompt(9, seed=4), prompt(11, seed=5)
    run = driver(pair.loaded, 2)
    run.step({0: shared + first})
    run.share(1, with_row=0, num_tokens=len(shared))
    ours = run.step({1: second, 0: first[:1]})
    assert_close(ours[1], pair.oracle(shared + second)[len(shared) :])
    assert_close(ours[0], pair.oracle(shared + first + first[:1])[-1:])
    continued, other = run.decode(ours, FEW)
    assert_greedy(pair.oracle, shared + second, continued)
    assert_greedy(pair.oracle, shared + first + first[:1], other)


@pytest.mark.row("F14.03")
@pytest.mark.row("F14.04")
@pytest.mark.parametrize("pair", list(with_a_spec()), indirect=True, scope="module")
def test_two_ranks_answer_as_one(pair: Pair, driver: Any, two_ranks: TwoRanks) -> None:
    check_two_ranks(pair, driver, two_ranks)


@pytest.mark.row("F06.21")
@pytest.mark.row("F14.11")
@pytest.mark.parametrize("pair", list(placed()), indirect=True, scope="module")
def test_two_ranks_with_whole_experts_answer_as_one(
    pair: Pair, driver: Any, two_ranks: TwoRanks
) -> None:
    check_two_ranks(pair, driver, two_ranks, experts=placements()[pair.case])


def check_two_ranks(pair: Pair, driver: Any, two_ranks: TwoRanks, **changes: Any) -> None:
    """A full prefill, 17-token chunks, a prefix hit, then a ragged decode of them all."""
    run = driver(pair.loaded, 5)
    prompts = [prompt(100), prompt(50, seed=1), prompt(1, seed=2), prompt(9, seed=3)]
    hit = prompts[0][:24] + prompt(11, seed=4)
    with two_ranks.serving(pair.folder, num_pages=run.cache.num_pages, **changes) as led:
        run.loaded, run.cache = led.loaded, led.cache
        ours = run.step({0: prompts[0]})
        chunks = [run.step({1: prompts[1][at : at + 17]})[1] for at in range(0, 50, 17)]
        run.share(4, with_row=0, num_tokens=24)
        ours |= run.step({2: prompts[2], 4: hit[24:], 3: prompts[3]}) | {1: torch.cat(chunks)}
        logits = {row: ours[row] for row in range(5)}
        continued = run.decode(logits, FEW)
    for row, (tokens, continuation) in enumerate(zip([*prompts, hit], continued, strict=True)):
        assert_close(logits[row], pair.oracle(tokens)[-len(logits[row]) :])
        assert_greedy(pair.oracle, tokens, continuation)


SHARED: list[Case] = [
    Case("LlamaForCausalLM", {"num_key_value_heads": 1}),
    Case("Qwen3ForCausalLM", {"num_key_value_heads": 1}),
    Case("Gemma3ForCausalLM", {"num_key_value_heads": 1}),
    Case("GptOssForCausalLM", {"num_key_value_heads": 1}),
    Case("FalconForCausalLM", {"new_decoder_architecture": False, "multi_query": True}),
    Case("DeepseekV3ForCausalLM"),
    Case("Qwen3NextForCausalLM", {"num_key_value_heads": 1}),
    Case("FalconH1ForCausalLM", {"num_key_value_heads": 1}),
    Case("Llama4ForCausalLM", {"num_key_value_heads": 1}),
]
"""Plain heads, normed ones, windows, sinks, one head for all, latents, states before and beside
them, chunks."""


@pytest.mark.row("F14.09")
@pytest.mark.parametrize(
    "pair", SHARED, ids=lambda c: c.architecture, indirect=True, scope="module"
)
def test_two_ranks_that_share_tokens_answer_as_one(
    pair: Pair, driver: Any, two_ranks: TwoRanks
) -> None:
    check_two_ranks(pair, driver, two_ranks, context=2)


@pytest.mark.parametrize("pair", list(in_transformers()), indirect=True, scope="module")
def test_bfloat16_is_as_close_to_float32_as_the_oracle_in_bfloat16(pair: Pair, driver: Any) -> None:
    """Only where the oracle is a model of transformers: the others compute in float32."""
    loaded = load_model(pair.folder, BuildContext(CPU, torch.bfloat16))
    rounding = asked(copy.deepcopy(pair.model).to(torch.bfloat16))
    # The median token: where two experts are nearly even, rounding takes another one, and the
    # error of that token is no measure of anything. Of keys that an index chooses, most tokens
    # have two such: there the median is one of more tokens.
    chosen = any(isinstance(mixer, SparseLatentAttention) for mixer, _ in loaded.spec.layers)
    errors, allowed = list[torch.Tensor](), list[torch.Tensor]()
    for tokens in [prompt(40, seed) for seed in range(6 if chosen else 1)]:
        exact, ours = pair.oracle(tokens), driver(loaded, 1).step({0: tokens})[0]
        errors.append((ours - exact).abs().mean(-1))
        allowed.append((rounding(tokens).float() - exact).abs().mean(-1))
    assert torch.cat(errors).median() < 1.5 * torch.cat(allowed).median()


@pytest.mark.parametrize("group", range(_GROUPS))
def test_relatives_match(group: int, tmp_path: Path, driver: Any, two_ranks: TwoRanks) -> None:
    for number, case in enumerate([*relatives()][group::_GROUPS]):
        (folder := tmp_path / str(number)).mkdir()
        pair = made(case, folder)
        assert isinstance(pair.loaded.model, Model), "it has a spec"
        test_full_prefill_matches(pair, driver)
        test_chunked_prefill_matches(pair, driver)
        test_ragged_batch_continues_as_each_row_alone(pair, driver)
        test_mixed_prefill_and_decode_step_matches(pair, driver)
        test_shared_pages_serve_a_second_sequence(pair, driver)
        if pair.model is not None:
            test_bfloat16_is_as_close_to_float32_as_the_oracle_in_bfloat16(pair, driver)
        check_two_ranks(pair, driver, two_ranks)
        if any(isinstance(ffn, ROUTED) for _, ffn in pair.loaded.spec.layers):
            check_two_ranks(pair, driver, two_ranks, experts="linear")


@pytest.mark.row("T08")
@pytest.mark.parametrize(("served", "length"), [(None, 100), (60, 40)], ids=["long", "short"])
def test_longrope_is_that_of_the_longest_sequence_served(
    tmp_path: Path, driver: Any, served: int | None, length: int
) -> None:
    """A worker of long sequences answers as transformers does beyond the original 64 tokens, one
    of short sequences as it does below."""
    model = tiny_models.save_checkpoint(
        tmp_path, "Phi3ForCausalLM", original_max_position_embeddings=64, sliding_window=None
    )
    loaded = load_model(tmp_path, BuildContext(CPU, torch.float32), served_length=served)
    tokens, run = prompt(length), driver(loaded, 1)
    ours = torch.cat([run.step({0: tokens[at : at + 7]})[0] for at in range(0, length, 7)])
    assert_close(ours, asked(model)(tokens))
