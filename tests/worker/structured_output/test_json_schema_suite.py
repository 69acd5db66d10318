"""What a random model writes under a grammar is valid, always; schemas of the official suite."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from baton.errors import InvalidRequest
from baton.protocol import Grammar, Sampling
from baton.structured_output.llguidance import problem
from baton_gateway.structured_output.request import constraint
from baton_worker.checkpoint.load import load_model
from baton_worker.engine.batch.input_batch import BatchSizes, InputBatch
from baton_worker.engine.forward.causal_forward import CausalForward
from baton_worker.engine.model_runner import ModelRunner
from baton_worker.kv_cache import KVCache
from baton_worker.layers.build_context import BuildContext
from baton_worker.structured_output.llguidance import Guidance
from baton_worker.structured_output.manager import StructuredOutputManager
from baton_worker.structured_output.vocabulary import Vocabulary
from tests.fakes.grammar_cases import suite
from tests.fakes.scheduler_planner import Planner, Sequence, run_all
from tests.support.tiny_models import save_checkpoint, save_tokenizer

SEEDS, ROWS, NUM_PAGES, PAGE_SIZE, EOS = 10, 64, 1024, 16, 1
DEVICE = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("random")
    save_checkpoint(path, "LlamaForCausalLM")
    return save_tokenizer(path)


@pytest.fixture(scope="module")
def vocabulary(folder: Path) -> Vocabulary:
    return Vocabulary.read(folder, 320)


@pytest.fixture(scope="module")
def planner(folder: Path, vocabulary: Vocabulary) -> Planner:
    loaded = load_model(folder, BuildContext(DEVICE, torch.float32))
    batch = InputBatch(
        BatchSizes(
            max_num_seqs=ROWS,
            max_model_len=loaded.max_length,
            page_size=PAGE_SIZE,
            num_pages=NUM_PAGES,
            vocab_size=loaded.vocab_size,
        ),
        constraints=StructuredOutputManager(Guidance(vocabulary), loaded.vocab_size),
    )
    cache = KVCache(loaded.spec, NUM_PAGES, PAGE_SIZE, dtype=torch.float32, device=DEVICE)
    runner = ModelRunner(CausalForward(loaded.model, cache, DEVICE), cache, batch)
    return Planner(runner, num_pages=NUM_PAGES, page_size=PAGE_SIZE)


def admitted() -> list[tuple[dict[str, Any], Grammar]]:
    """Schemas that clients may send, and their grammars: those that the judge understands too."""
    found = []
    for case in (one for one in suite() if "/" not in one.file):
        try:
            one = constraint({"structured_outputs": {"json": case.schema}})
        except InvalidRequest:
            continue
        assert one is not None
        if problem(one.grammar) is None:
            found.append((case.schema, one.grammar))
    return found


Asked = tuple[Grammar, int, Callable[[str], object]]
"""A grammar, a seed, and a judge that raises."""


def judged(planner: Planner, vocabulary: Vocabulary, every: list[Asked]) -> float:
    """Run all, and judge the outputs that ended. Returns their share."""
    # A random model would open strings and arrays for ever.
    closing = {i: 4.0 for i, piece in enumerate(vocabulary.pieces) if piece in (b'"', b"}", b"]")}
    ended = 0
    for at in range(0, len(every), ROWS):
        part = every[at : at + ROWS]
        sequences = [
            Sequence(
                [0, 30, 40],
                Sampling(seed=seed, grammar=g, max_tokens=100, stop_ids=(EOS,), logit_bias=closing),
            )
            for g, seed, _ in part
        ]
        run_all(planner, sequences)
        for (_, _, judge), sequence in zip(part, sequences, strict=True):
            assert not sequence.failure
            if sequence.finish == "stop":
                ended += 1
                judge(b"".join(vocabulary.pieces[t] for t in sequence.log if t != EOS).decode())
    return ended / len(every)


@pytest.mark.slow
@pytest.mark.row("F10.01")
def test_every_output_is_valid(planner: Planner, vocabulary: Vocabulary) -> None:
    def judge(schema: dict[str, Any]) -> Callable[[str], object]:
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        validator = jsonschema.Draft202012Validator(schema, format_checker=checker)
        return lambda text: validator.validate(json.loads(text))

    schemas = admitted()
    assert len(schemas) >= 150
    every = [(grammar, i, judge(schema)) for schema, grammar in schemas for i in range(SEEDS)]
    assert judged(planner, vocabulary, every) > 0.8


def matches(pattern: str) -> Callable[[str], object]:
    def judge(text: str) -> None:
        assert re.fullmatch(pattern, text), text

    return judge


def is_nested(text: str) -> None:
    assert re.fullmatch(r"[\[\],a-c]+", text) and not re.search("[a-c]{4}", text)
    json.loads(re.sub("[a-c]+", "0", text))


def has_whole_tags(text: str) -> None:
    tag = r"<f>[ \n\r\t]*(true|false)[ \n\r\t]*</f>"
    assert "<f" not in re.sub(tag, "", text)


TAGS = {
    "triggers": ["<f"],
    "structures": [{"begin": "<f>", "schema": {"type": "boolean"}, "end": "</f>"}],
}
KINDS = [
    ("regex", "[0-9]{3}-[a-f]{2,4}", matches("[0-9]{3}-[a-f]{2,4}"), "F10.02"),
    ("regex", r"(yes|no)+[^x\n]?", matches(r"(yes|no)+[^x\n]?"), "F10.02"),
    ("choice", '["yes","no, thanks","é"]', matches("yes|no, thanks|é"), "F10.03"),
    (
        "grammar",
        'start: w ("-" w)*\nw: /[a-z]{1,3}/',
        matches("[a-z]{1,3}(-[a-z]{1,3})*"),
        "F10.04",
    ),
    ("grammar", 'root ::= "[" i ("," i)* "]"\ni ::= [a-c]{1,3} | root', is_nested, "F10.05"),
    ("structural_tag", json.dumps(TAGS), has_whole_tags, "F10.06"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "source", "judge"),
    [pytest.param(*one[:3], marks=pytest.mark.row(one[3]), id=one[3]) for one in KINDS],
)
def test_a_hundred_seeds(
    planner: Planner, vocabulary: Vocabulary, kind: Any, source: str, judge: Callable[[str], object]
) -> None:
    grammar = Grammar(kind, source)
    assert problem(grammar) is None
    assert judged(planner, vocabulary, [(grammar, i, judge) for i in range(100)]) > 0.3
