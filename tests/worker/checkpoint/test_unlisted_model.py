"""What a model without a spec cannot do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from baton.errors import ModelError
from baton_worker.checkpoint.unlisted_model import check_unlisted
from baton_worker.layers.build_context import BuildContext
from tests.support import tiny_models

CONTEXT = BuildContext(torch.device("cpu"), torch.float32)


def test_what_transformers_runs_is_not_cut() -> None:
    config = SimpleNamespace(architectures=[tiny_models.EXAMPLE_UNLISTED])
    check_unlisted(config, "auto", CONTEXT, is_split=False, patched=False)
    with pytest.raises(ModelError, match="only a spec can be cut for several ranks"):
        check_unlisted(config, "auto", CONTEXT, is_split=True, patched=False)
