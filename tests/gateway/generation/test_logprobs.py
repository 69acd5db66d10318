"""Log-probabilities in the chat, completions and vLLM formats."""

from __future__ import annotations

import math

import msgspec
import pytest

from baton.protocol import Logprobs, PromptLogprobs
from baton.protocol.token_columns import pack
from baton_gateway.generation.logprobs import Vocabulary, by_row, of_prompt
from baton_gateway.generation.output import TokenLogprob

NAMES = Vocabulary((b"a", b" b", b"\xc3", b"\xa9", b"<s>"))


def _columns(rows: list[int], chosen: list[float], tops: list[list[tuple[int, float]]]) -> Logprobs:
    flat = [pair for top in tops for pair in top]
    return Logprobs(
        pack(rows, "I"),
        pack(chosen, "f"),  # type: ignore[arg-type]
        pack([3] * len(rows), "I"),
        pack([len(top) for top in tops], "B"),
        pack([token for token, _ in flat]),
        pack([value for _, value in flat], "f"),  # type: ignore[arg-type]
    )


def test_columns_by_row() -> None:
    columns = _columns([0, 2], [-1.0, -math.inf], [[(1, -0.5), (0, -1.0)], []])
    assert by_row(columns, [0, 1, 4]) == {
        0: TokenLogprob(0, -1.0, 3, ((1, -0.5), (0, -1.0))),
        # OpenAI's number for a probability of zero.
        2: TokenLogprob(4, -9999.0, 3, ()),
    }
    assert by_row(None, []) == {}


def test_parts_of_a_prompt_find_their_place() -> None:
    part = PromptLogprobs(1, 2, _columns([0, 1], [-1.0, -2.0], [[], []]))
    found = of_prompt(part, [4, 0, 1, 2])
    assert {p: (e.token, e.logprob) for p, e in found.items()} == {2: (1, -1.0), 3: (2, -2.0)}


def test_names() -> None:
    assert [NAMES.text(i) for i in (0, 1, 2, 99, -1)] == ["a", " b", "\ufffd", "", ""]
    assert [NAMES.name(i) for i in (1, 2, 3)] == [" b", "bytes:\\xc3", "bytes:\\xa9"]


def test_chat_shape() -> None:
    entry = TokenLogprob(2, -1.5, 2, ((0, -0.5), (1, -1.0)))
    found = msgspec.to_builtins(NAMES.chat([entry], 1))
    assert found == {
        "content": [
            {
                "token": "\ufffd",
                "logprob": -1.5,
                "bytes": [0xC3],
                "top_logprobs": [{"token": "a", "logprob": -0.5, "bytes": [97]}],
            }
        ],
        "refusal": None,
    }


def test_completions_shape_has_the_chosen_token_besides_the_best() -> None:
    entries = [TokenLogprob(1, -3.0, 9, ((0, -0.5),)), TokenLogprob(0, -0.5, 1, ((0, -0.5),))]
    found = NAMES.completion(entries, 1, [4, 6])
    assert found.tokens == [" b", "a"] and found.text_offset == [4, 6]
    assert found.top_logprobs == [{"a": -0.5, " b": -3.0}, {"a": -0.5}]
    assert found.then(found).token_logprobs == [-3.0, -0.5] * 2


@pytest.mark.parametrize(
    ("prompt", "text", "offsets"),
    [
        ([4, 0, 1, 1], "a b b", [0, 0, 1, 3]),
        ([4, 2, 3, 0], "éa", [0, 0, 1, 1]),
        # The vocabulary spells the first word with a space that the text does not have.
        ([4, 1, 1, 0], "b ba", [0, 0, 1, 3]),
        ([4, 1, 1, 0], " b ba", [0, 0, 2, 4]),
    ],
)
def test_places_of_prompt_tokens_in_the_text(
    prompt: list[int], text: str, offsets: list[int]
) -> None:
    entries = [None, *(TokenLogprob(t, -1.0, 1, ()) for t in prompt[1:])]
    found = NAMES.echo(prompt, entries, 0, text, frozenset({4}))
    assert found.text_offset == offsets
    assert found.token_logprobs == [None, -1.0, -1.0, -1.0]


def test_prompt_table() -> None:
    table = NAMES.prompt_table([None, TokenLogprob(1, -2.0, 5, ((0, -0.5), (1, -2.0)))], 1)
    assert msgspec.to_builtins(table) == [
        None,
        {
            "1": {"logprob": -2.0, "rank": 5, "decoded_token": " b"},
            "0": {"logprob": -0.5, "rank": 1, "decoded_token": "a"},
        },
    ]
