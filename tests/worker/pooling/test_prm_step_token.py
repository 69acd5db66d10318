"""The token that ends a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.errors import ModelError
from baton_worker.pooling.prm_step_token import STEP, read_step_id
from tests.support import tiny_encoders


def test_it_is_read_from_the_tokenizer(tmp_path: Path) -> None:
    tiny_encoders.save_tokenizer(tmp_path, types=False, special=STEP)
    assert read_step_id(tmp_path) == len(tiny_encoders.SPECIAL)


def test_a_tokenizer_without_it(tmp_path: Path) -> None:
    tiny_encoders.save_tokenizer(tmp_path, types=False)
    with pytest.raises(ModelError, match="no token <extra_0>"):
        read_step_id(tmp_path)


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        read_step_id(tmp_path)
