"""The shape of drafts."""

from __future__ import annotations

import json

import pytest

from baton.errors import SettingsError
from baton_worker.speculative.config import parse
from baton_worker.speculative.token_tree import TokenTree


@pytest.mark.row("F08.11")
def test_a_tree_of_vllm() -> None:
    tree = TokenTree.parse("[(1,), (0,), (0, 1), (0, 0), (1, 0), (0, 0, 0)]")
    assert tree.nodes == ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
    assert tree.widths == (2, 3, 1) and tree.ranks == (2, 2, 1)
    assert tree.totals == (2, 5, 6)
    assert not tree.is_chain and not tree.follows_first
    assert TokenTree.parse("[(0,), (1,), (0, 0)]").follows_first
    assert TokenTree.chain(2) == TokenTree.parse("[(0,), (0, 0)]") and TokenTree.chain(2).is_chain


def test_what_is_no_tree_is_refused_with_a_remedy() -> None:
    fields = {"method": "draft_model", "model": "a", "num_speculative_tokens": 2}
    for changes, message in (
        ({"speculative_token_tree": "no"}, "a list of tuples"),
        ({"speculative_token_tree": "[1]"}, "a list of tuples"),
        ({"speculative_token_tree": "[]"}, "1 to 63 nodes"),
        ({"speculative_token_tree": "[(0,), (0,)]"}, "each once"),
        ({"speculative_token_tree": "[(0,), (1, 0)]"}, "not in it"),
        ({"speculative_token_tree": "[(0,), (-1,)]"}, "negative rank"),
        ({"speculative_token_tree": "[(0,), (1,), (2,)]"}, "has 3 nodes"),
        (
            {"method": "ngram", "model": None, "speculative_token_tree": "[(0,), (1,)]"},
            "copies text",
        ),
    ):
        given = {name: value for name, value in (fields | changes).items() if value is not None}
        with pytest.raises(SettingsError, match=message):
            parse(json.dumps(given))
    config = parse(json.dumps(fields | {"speculative_token_tree": "[(0,), (1,)]"}))
    assert config is not None and config.tree.ranks == (2,)
