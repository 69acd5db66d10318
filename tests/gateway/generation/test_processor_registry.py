from __future__ import annotations

import pytest
from pydantic import ValidationError

from baton_gateway.config import Config
from baton_gateway.generation.processor_registry import names


def test_the_setting_lists_known_names() -> None:
    assert names(" no_repeat_ngram ,") == ("no_repeat_ngram",)
    with pytest.raises(ValidationError, match="no_repeat_ngram"):
        Config(logits_processors="no_repeat_bigram")
