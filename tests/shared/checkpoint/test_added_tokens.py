"""Tokens that a checkpoint added."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from baton.checkpoint.added_tokens import added_tokens
from baton.errors import ModelError


def test_the_first_file_that_lists_some(tmp_path: Path) -> None:
    assert added_tokens(tmp_path) == {}
    listed: list[tuple[str, dict[str, Any]]] = [
        ("tokenizer.json", {"added_tokens": [{"id": 3, "content": "<a>"}], "model": {}}),
        ("added_tokens.json", {"<b>": 4}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"5": {"content": "<c>"}}}),
    ]
    for (name, content), expected in zip(listed, ({"<a>": 3}, {"<b>": 4}, {"<c>": 5}), strict=True):
        (tmp_path / name).write_text(json.dumps(content))
        assert added_tokens(tmp_path) == expected
    (tmp_path / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"x": {}}}')
    with pytest.raises(ModelError, match="no known form"):
        added_tokens(tmp_path)
