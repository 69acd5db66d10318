"""Encoders from descriptions."""

from __future__ import annotations

import pytest

from baton.errors import ModelError
from baton_tokenizer.vocabulary.tokenizer_json import compile_spec
from tests.fakes.vocabularies import byte_spec


def test_truncation_and_padding_of_the_file_do_not_apply() -> None:
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    tokenizer = compile_spec(byte_spec() | {"truncation": truncation})
    assert len(tokenizer.encode("xyz xyz").ids) == 7


@pytest.mark.parametrize(
    "change", [{"model": {"type": "Magic"}}, {"decoder": {"type": "Magic"}}, {"model": None}]
)
def test_a_broken_description_is_refused_in_one_sentence(change: dict[str, object]) -> None:
    with pytest.raises(ModelError, match="The tokenizer cannot be built"):
        compile_spec(byte_spec() | change)
