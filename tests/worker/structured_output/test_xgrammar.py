"""xgrammar beside llguidance: what comes out is valid, on every kind of vocabulary."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from baton.protocol import Grammar, Sampling
from baton.structured_output.llguidance import GrammarError
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.structured_output import GRAMMARS
from baton_worker.structured_output.jump_forward import MOST, Spelling, encoder
from baton_worker.structured_output.llguidance import Guidance
from baton_worker.structured_output.manager import StructuredOutputManager
from baton_worker.structured_output.vocabulary import Vocabulary
from baton_worker.structured_output.xgrammar import XGrammar
from tests.support.tiny_models import save_tokenizer
from tests.support.worker.constrained_rows import GRAMMARS as ASKED
from tests.support.worker.constrained_rows import PLAIN, Jumping, logs, samplings, text

SCHEMA, REGEX, CHOICE, _ = ASKED


def following(path: Path, vocabulary: Vocabulary, *, jump_ahead: bool) -> StructuredOutputManager:
    spelling = Spelling(vocabulary, encoder(path, vocabulary))
    size = len(vocabulary.pieces)
    return StructuredOutputManager(XGrammar(vocabulary), size, spelling, jump_ahead=jump_ahead)


def test_the_registry_knows_it() -> None:
    assert GRAMMARS.load("xgrammar") is XGrammar


def test_outputs_are_valid_and_jumping_ahead_changes_no_token(
    stories: Path, loaded: LoadedModel, vocabulary: Vocabulary
) -> None:
    found = {}
    for jump_ahead in (False, True):
        like = following(stories, vocabulary, jump_ahead=jump_ahead)
        one = Jumping(loaded, like, None if jump_ahead else PLAIN)
        found[jump_ahead] = logs(one, samplings()[:4])
        assert any(max(r.counts, default=0) > 3 for r in one.results) == jump_ahead
    assert found[True] == found[False]
    texts = [text(vocabulary, log) for log in found[True]]
    assert 3 <= json.loads(texts[0])["age"] <= 12
    assert texts[1].endswith("The end.")
    assert texts[2] in json.loads(CHOICE.source)


def test_it_says_where_an_output_may_end_and_is_over(vocabulary: Vocabulary) -> None:
    ids = {piece: token for token, piece in enumerate(vocabulary.pieces) if piece}
    matcher = XGrammar(vocabulary).compile(Grammar("regex", "ab?"))
    assert matcher.forced() == b"a" and not matcher.may_end
    assert matcher.accept([ids[b"a"]]) and matcher.may_end and not matcher.over
    assert matcher.forced() == b""
    other = matcher.copy()
    assert other.accept([ids[b"b"]]) and other.over and not matcher.over
    other.back()
    assert other.may_end and not other.over and other.accept([ids[b"b"]])
    assert not matcher.accept([ids[b"a"]]) and "cannot follow" in matcher.error
    assert not matcher.allowed().any() and not matcher.may_end


def test_half_a_character_is_known(vocabulary: Vocabulary) -> None:
    assert XGrammar(vocabulary).compile(Grammar("choice", '["é","ê"]')).forced() == b"\xc3"


def test_endless_text_and_endless_work_end(vocabulary: Vocabulary) -> None:
    """Forced text is known as far as it is looked at. An ambiguous grammar takes ever more time per
    token, until it has used up what its output may take."""
    ids = {piece: token for token, piece in enumerate(vocabulary.pieces) if piece}
    endless = XGrammar(vocabulary).compile(Grammar("grammar", 'root ::= [ab]{40} x\nx ::= "cd" x'))
    assert endless.accept([ids[b"a"]] * 40) and endless.forced() == b"cd" * (MOST // 2)
    assert endless.accept([ids[b"c"]]) and endless.forced().startswith(b"dc") and not endless.error
    endless.back()
    assert endless.forced() == b"cd" * (MOST // 2)
    ambiguous = XGrammar(vocabulary).compile(Grammar("grammar", 'root ::= e\ne ::= e e | "a"'))
    other, number = ambiguous.copy(), 0
    while ambiguous.accept([ids[b"a"]]) and ambiguous.allowed().any():
        number += 1
    assert 50 < number < 1000 and "less ambiguous" in ambiguous.error
    assert not ambiguous.allowed().any() and not ambiguous.may_end and ambiguous.forced() == b""
    assert other.accept([ids[b"a"]]) and not other.error


def test_what_it_lacks(vocabulary: Vocabulary) -> None:
    with pytest.raises(GrammarError, match=r"xgrammar.*llguidance"):
        XGrammar(vocabulary).compile(Grammar("grammar", 'start: "a"'))


def the_same_first_tokens(vocabulary: Vocabulary, grammar: Grammar) -> None:
    """Both engines allow the same tokens at the beginning, and after each of three of them."""
    one, two = (engine(vocabulary).compile(grammar) for engine in (Guidance, XGrammar))
    for _ in range(4):
        masks = [
            np.unpackbits(m.allowed(), count=len(vocabulary.pieces), bitorder="little")
            for m in (one, two)
        ]
        assert (masks[0] == masks[1]).all()
        if not masks[0].any():
            break
        token = int(masks[0].nonzero()[0][-1])
        assert one.accept([token]) and two.accept([token])


KINDS = [SCHEMA, REGEX, CHOICE, Grammar("choice", '["é!","日本","😀 x","e"]')]


@pytest.mark.parametrize("grammar", KINDS, ids=lambda g: g.kind)
def test_byte_level_and_byte_fallback(
    vocabulary: Vocabulary, tmp_path: Path, grammar: Grammar
) -> None:
    the_same_first_tokens(vocabulary, grammar)
    the_same_first_tokens(Vocabulary.read(save_tokenizer(tmp_path), 320), grammar)


@pytest.mark.slow
@pytest.mark.parametrize("grammar", KINDS, ids=lambda g: g.kind)
def test_a_gguf_file(smollm2: Path, grammar: Grammar) -> None:
    the_same_first_tokens(Vocabulary.read(smollm2, 49152), grammar)


def test_a_pattern_that_is_sampled(
    stories: Path, loaded: LoadedModel, vocabulary: Vocabulary
) -> None:
    one = Jumping(loaded, following(stories, vocabulary, jump_ahead=True))
    pattern = "[a-c]{2,4}-[0-9]{2}"
    asked = [Sampling(12, seed=seed, grammar=Grammar("regex", pattern)) for seed in (1, 2)]
    for log in logs(one, asked):
        assert re.fullmatch(pattern, text(vocabulary, log))
