"""Bad words are encoded in both spellings, up to a length limit."""

from __future__ import annotations

import pytest

from baton.errors import InvalidRequest
from baton.protocol import Submit
from baton_gateway.generation.bad_words import MAX_TOKENS, encode_bad_words
from baton_gateway.generation.request import TextPrompt
from tests.fakes.gateway_app import Site


class Bytes:
    """A token per byte, and no special tokens."""

    async def encode(self, prompt: TextPrompt, limit: int) -> list[int]:
        assert not prompt.add_special
        return list(prompt.text.encode())[: limit + 1]


@pytest.mark.row("F09.15")
async def test_with_and_without_a_space() -> None:
    assert await encode_bad_words(("ab", " c", "ab"), Bytes()) == (
        (97, 98),
        (32, 97, 98),
        (32, 99),
    )


@pytest.mark.row("F09.15", "F09.06")
def test_words_and_ids_reach_the_scheduler(own_site: Site) -> None:
    fields = {"bad_words": ["no"], "allowed_token_ids": [5, 6], "typical_p": 0.5}
    assert own_site.chat(**fields).status_code == 200
    submit = next(m for m in own_site.engine.scheduler.seen if isinstance(m, Submit))
    assert submit.sampling.bad_words == ((110, 111), (32, 110, 111))
    assert submit.sampling.allowed_ids == (5, 6)
    assert submit.sampling.typical_p == 0.5


async def test_the_longest_word_counts_its_space() -> None:
    assert len(await encode_bad_words(("x" * (MAX_TOKENS - 1),), Bytes())) == 2
    with pytest.raises(InvalidRequest, match="more than 16 tokens") as caught:
        await encode_bad_words(("x" * MAX_TOKENS,), Bytes())
    assert caught.value.param == "bad_words"
