"""No key of a config is ignored in silence.

Every key that the model of transformers reads, and that changes its logits while its weights fit,
is changed once in the checkpoint's config: our logits follow, or loading refuses it by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.models import ARCHITECTURES
from tests.oracles.checkpoints import MAKERS
from tests.support import tiny_models
from tests.support.worker.config_keys import changes, rewrite

NAMES = [
    name for name in ARCHITECTURES.names() if name in tiny_models.TRAITS and name not in MAKERS
]
TOLERANCE = 2e-3
_GROUPS = 4
"""Groups of architectures, one case each: every one of them has the same rule."""
CONTEXT = BuildContext(torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("group", range(_GROUPS))
def test_every_key_that_counts_is_followed_or_refused(
    group: int, tmp_path: Path, driver: Any
) -> None:
    ignored, counted = list[str](), 0
    for name in NAMES[group::_GROUPS]:
        folder = tmp_path / name
        model = tiny_models.save_checkpoint(folder, name)
        config, tokens = (folder / "config.json").read_text(), list(range(5, 45))
        for change in changes(model, tokens):
            counted += 1
            (folder / "config.json").write_text(config)
            rewrite(folder, change)
            try:
                ours = driver(load_model(folder, CONTEXT), 1).step({0: tokens})[0]
            except ModelError:
                continue
            if not (ours - change.logits).abs().max() < TOLERANCE:
                ignored.append(f"{name}: {change.key} = {change.value}")
    assert not ignored
    assert counted >= 2 * len(NAMES[group::_GROUPS]), "the recorder sees what is read"
