"""What a real small model samples at temperature 1 follows its grammar, whatever happens to it."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
import torch

from baton.protocol import Grammar, Sampling
from baton.structured_output.llguidance import GrammarError
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.engine.batch.input_batch import BatchSizes, InputBatch
from baton_worker.engine.forward.causal_forward import CausalForward
from baton_worker.engine.model_runner import ModelRunner
from baton_worker.kv_cache import KVCache
from baton_worker.structured_output.llguidance import Guidance
from baton_worker.structured_output.manager import StructuredOutputManager
from baton_worker.structured_output.vocabulary import Vocabulary
from tests.fakes.scheduler_planner import Planner, Sequence, run_all

DEVICE = torch.device("cpu")
NUM_PAGES, PAGE_SIZE, EOS = 1024, 16, 2
PROMPT = [1, 403, 407, 261, 378]

SCHEMAS: dict[str, dict[str, Any]] = {
    "object": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b", None, 1.5]}, "maxItems": 3},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "extra": {
        "type": "object",
        "properties": {"a": {"const": "é\n\"\\"}},
        "required": ["a"],
        "patternProperties": {"^x[0-9]$": {"type": "boolean"}},
        "additionalProperties": {"type": "null"},
        "minProperties": 2,
        "maxProperties": 3,
    },
    "tree": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "v": {"type": "integer", "multipleOf": 3, "exclusiveMinimum": -9},
                    "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1},
                },
                "required": ["v", "kids"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "either": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": "n"}, "n": {"type": "number", "maximum": 1}},
                "required": ["kind", "n"],
                "additionalProperties": False,
            },
            {
                "type": "object",
                "properties": {"kind": {"const": "s"}, "s": {"pattern": "^a+b?$"}},
                "required": ["kind", "s"],
                "additionalProperties": False,
            },
        ]
    },
    "all": {
        "allOf": [{"type": "string", "maxLength": 9}, {"minLength": 3}, {"pattern": "o"}],
    },
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "boolean"}, {"anyOf": [{"type": "integer"}, {"type": "null"}]}],
        "items": {"type": "string", "maxLength": 2},
        "minItems": 2,
        "maxItems": 4,
    },
    "formats": {
        "type": "object",
        "properties": {
            "id": {"type": "string", "format": "uuid"},
            "ip": {"type": "string", "format": "ipv4"},
        },
        "required": ["id", "ip"],
        "additionalProperties": False,
    },
    "sibling": {"$defs": {"s": {"type": "string"}}, "$ref": "#/$defs/s", "maxLength": 4},
    "anything": {"type": ["boolean", "null", "integer"]},
}  # fmt: skip
REGEXES = [r"[0-9]{3}-[a-f]{2,4}", r"^(yes|no|maybe\n)$", r"a/b\\[^x]{2}é", r"(\w+ ){1,3}end"]
CHOICES = ["yes", "yes, please", "no", 'é "q"\n', "\U0001f600"]
GBNF = 'root ::= "[" item ("," item)* "]"\nitem ::= [a-c]{1,3} | root'
LARK = 'start: word (" " word)* "."\nword: /[a-z]{1,4}/'
TAGS = {
    "triggers": ["<"],
    "structures": [{"begin": "<f=a>", "schema": SCHEMAS["anything"], "end": "</f>"}],
}


@pytest.fixture
def planner(loaded: LoadedModel, vocabulary: Vocabulary) -> Planner:
    return planner_of(loaded, vocabulary)


def planner_of(loaded: LoadedModel, vocabulary: Vocabulary, rows: int = 64) -> Planner:
    cache = KVCache(loaded.spec, NUM_PAGES, PAGE_SIZE, dtype=torch.float32, device=DEVICE)
    batch = InputBatch(
        BatchSizes(
            max_num_seqs=rows,
            max_model_len=loaded.max_length,
            page_size=PAGE_SIZE,
            num_pages=NUM_PAGES,
            vocab_size=loaded.vocab_size,
        ),
        constraints=StructuredOutputManager(Guidance(vocabulary), loaded.vocab_size),
    )
    runner = ModelRunner(CausalForward(loaded.model, cache, DEVICE), cache, batch)
    return Planner(runner, num_pages=NUM_PAGES, page_size=PAGE_SIZE)


def sequence(grammar: Grammar | None, seed: int, **fields: Any) -> Sequence:
    fields = {"max_tokens": 120, "stop_ids": (EOS,)} | fields
    return Sequence(list(PROMPT), Sampling(seed=seed, grammar=grammar, **fields))


def terse(vocabulary: Vocabulary, quotes: float = 4.0) -> dict[int, float]:
    """A bias that makes a teller of stories come to the end of a JSON value."""
    bias = {i: -9.0 for i, piece in enumerate(vocabulary.pieces) if piece and not piece.strip()}
    bias |= {i: -quotes for i, piece in enumerate(vocabulary.pieces) if piece == b","}
    return bias | {i: quotes for i, p in enumerate(vocabulary.pieces) if p in (b'"', b"}", b"]")}


def schema(name: str) -> Grammar:
    return Grammar("json_schema", json.dumps(SCHEMAS[name]))


def texts(
    planner: Planner, vocabulary: Vocabulary, grammar: Grammar, seeds: int = 25, **fields: Any
) -> list[str]:
    """What was sampled by the sequences that ended by themselves; most of them do."""
    fields = {"logit_bias": terse(vocabulary)} | fields
    sequences = [sequence(grammar, seed, **fields) for seed in range(seeds)]
    run_all(planner, sequences)
    assert not [s.failure for s in sequences if s.failure]
    ended = [s for s in sequences if s.finish == "stop"]
    assert len(ended) > seeds // 2
    return [b"".join(vocabulary.pieces[t] for t in s.log).decode() for s in ended]


@pytest.mark.row("F10.01")
@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas(planner: Planner, vocabulary: Vocabulary, name: str) -> None:
    validator = jsonschema.Draft202012Validator(
        SCHEMAS[name], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    found = texts(planner, vocabulary, schema(name))
    for text in found:
        validator.validate(json.loads(text))
    assert len(set(found)) > 2 or name == "anything"


@pytest.mark.row("F10.01")
def test_any_object(planner: Planner, vocabulary: Vocabulary) -> None:
    bias = terse(vocabulary, 9.0)
    for text in texts(planner, vocabulary, Grammar("json_object", ""), logit_bias=bias):
        assert isinstance(json.loads(text), dict)


@pytest.mark.row("F10.02")
@pytest.mark.parametrize("pattern", REGEXES)
def test_regexes(planner: Planner, vocabulary: Vocabulary, pattern: str) -> None:
    for text in texts(planner, vocabulary, Grammar("regex", pattern)):
        assert re.fullmatch(pattern.replace("$", r"\Z"), text)


@pytest.mark.row("F10.03")
def test_choices(planner: Planner, vocabulary: Vocabulary) -> None:
    grammar = Grammar("choice", json.dumps(CHOICES))
    found = texts(planner, vocabulary, grammar, temperature=3.0, logit_bias={})
    assert len(found) == 25 and set(found) <= set(CHOICES) and len(set(found)) > 1


@pytest.mark.row("F10.04", "F10.05")
def test_grammars(planner: Planner, vocabulary: Vocabulary) -> None:
    for text in texts(planner, vocabulary, Grammar("grammar", LARK)):
        assert re.fullmatch(r"[a-z]{1,4}( [a-z]{1,4})*\.", text)
    bias = terse(vocabulary, 9.0)
    for text in texts(planner, vocabulary, Grammar("grammar", GBNF), logit_bias=bias):
        assert json.loads(re.sub("[a-c]+", "0", text)) and not re.search("[a-c]{4}", text)


@pytest.mark.row("F10.06")
def test_structural_tags(planner: Planner, vocabulary: Vocabulary) -> None:
    """Text is free, but what begins like a tag is one."""
    favoured = {i: 20.0 for i, piece in enumerate(vocabulary.pieces) if piece == b"<"}
    grammar = Grammar("structural_tag", json.dumps(TAGS))
    fields = {"logit_bias": terse(vocabulary) | favoured, "max_tokens": 100}
    sequences = [sequence(grammar, seed, **fields) for seed in range(25)]
    run_all(planner, sequences)
    found = [b"".join(vocabulary.pieces[t] for t in s.log).decode("utf-8", "replace")
             for s in sequences]  # fmt: skip
    tag = re.compile(r"<f=a>[ \n\r\t]*(true|false|null|-?[0-9]+)[ \n\r\t]*</f>")
    assert sum(len(tag.findall(text)) for text in found) > 3
    for text in found:
        # The last tag may have been cut off by the end of the log.
        assert re.fullmatch(r"[^<]*(<(f(=(a(>[^<]*(</?)?f?)?)?)?)?)?", tag.sub("", text))


@pytest.mark.row("F10.01", "F10.02", "F10.03")
def test_mixed_with_free_rows_equals_one_by_one(
    loaded: LoadedModel, vocabulary: Vocabulary
) -> None:
    grammars = [schema("object"), None, Grammar("regex", REGEXES[0]), None, schema("tree")]
    fields = {"max_tokens": 40, "logprobs": 1}
    sequences = [sequence(g, i, **fields) for i, g in enumerate(grammars)]
    together = run_all(planner_of(loaded, vocabulary), sequences)
    alone = [
        run_all(planner_of(loaded, vocabulary), [sequence(g, i, **fields)])[0]
        for i, g in enumerate(grammars)
    ]
    assert together == alone
    free = [
        run_all(planner_of(loaded, vocabulary), [sequence(None, i, **fields)])[0] for i in (1, 3)
    ]
    assert free == [together[1], together[3]]


@pytest.mark.row("F10.01", "F13.05")
@pytest.mark.parametrize("after", [1, 7, 20])
def test_same_tokens_after_preemption(
    loaded: LoadedModel, vocabulary: Vocabulary, after: int
) -> None:
    whole = run_all(planner_of(loaded, vocabulary), [sequence(schema("object"), 5)])[0]
    assert len(whole) > 20
    planner = planner_of(loaded, vocabulary)
    one = planner.add(sequence(schema("object"), 5))
    for _ in range(after):
        planner.step()
    planner.remove(one)
    other = planner_of(loaded, vocabulary)
    other.add(one)
    other.finish()
    assert one.log == whole


def test_the_end_needs_no_stop_id(planner: Planner, vocabulary: Vocabulary) -> None:
    found = texts(planner, vocabulary, Grammar("regex", "[0-9]{4}"), stop_ids=())
    assert len(found) == 25


def test_a_stop_id_only_where_the_grammar_may_end(planner: Planner, vocabulary: Vocabulary) -> None:
    """A client's stop id that is a piece of text: it ends the output, and is no part of it."""
    sevens = [i for i, piece in enumerate(vocabulary.pieces) if piece == b"7"]
    grammar = Grammar("regex", "[0-9]{3,9}")
    sequences = [sequence(grammar, seed, stop_ids=(EOS, *sevens)) for seed in range(40)]
    run_all(planner, sequences)
    for one in sequences:
        visible = one.log[:-1] if one.log[-1] in (EOS, *sevens) else one.log
        assert re.fullmatch(
            "[0-689]{3,9}", b"".join(vocabulary.pieces[t] for t in visible).decode()
        )


def test_grammars_that_cannot_be_followed(planner: Planner, vocabulary: Vocabulary) -> None:
    broken = sequence(Grammar("regex", "("), 1)
    elsewhere = sequence(Grammar("regex", "[0-9]+"), 1)
    elsewhere.log = [403]
    fine = sequence(Grammar("regex", "[0-9]{4}"), 1)
    run_all(planner, [broken, elsewhere, fine])
    assert "grammar cannot be followed" in broken.failure
    assert "log does not follow" in elsewhere.failure
    assert fine.finish == "stop"
    with pytest.raises(GrammarError):
        Guidance(vocabulary).compile(Grammar("json_schema", '{"type":"stsring"}'))
    endless = Guidance(vocabulary).compile(Grammar("grammar", 'start: /a{70}/ x\nx: "yx" x'))
    assert endless.accept([vocabulary.pieces.index(b"a")] * 70) and not endless.error
    assert endless.forced().startswith(b"yxyx") and not endless.allowed().any()
    assert "the text that it forces is endless" in endless.error and not endless.over
