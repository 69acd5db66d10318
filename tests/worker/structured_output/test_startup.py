"""What structured output needs of a checkpoint is found, or its lack is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_worker.structured_output.startup import constraints_of
from tests.support.tiny_models import VOCAB_SIZE, save_tokenizer


def test_a_checkpoint_without_a_tokenizer_has_no_grammars(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert constraints_of(tmp_path, 100, backend="llguidance", jump_ahead=True) is None
    assert "structured output is not available" in caplog.text
    save_tokenizer(tmp_path)
    assert constraints_of(tmp_path, VOCAB_SIZE, backend="llguidance", jump_ahead=True) is not None
