"""The content of a tokenizer.json, and the encoder that it describes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from baton.errors import ModelError


def compile_spec(spec: Mapping[str, Any]) -> Tokenizer:
    """The encoder of a tokenizer.json, without its truncation and padding."""
    try:
        tokenizer = Tokenizer.from_str(json.dumps(spec))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"The tokenizer cannot be built: {error}.") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
