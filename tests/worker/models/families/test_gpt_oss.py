"""gpt-oss."""

from __future__ import annotations

import pytest

from baton.errors import ModelError
from tests.support.moe_configs import spec


def test_what_gpt_oss_cannot_be_is_refused() -> None:
    with pytest.raises(ModelError, match="swiglu_alpha"):
        spec("GptOssForCausalLM", swiglu_alpha=2.0)
