"""No key of a config is ignored in silence, and none breaks a loader.

Every key that the model of transformers reads, and that changes its logits while its weights fit,
is changed once in the checkpoint's config: our logits follow, or loading refuses it by name. Every
key gets values of other JSON types: what cannot be served is refused with a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.task import served_task
from baton_worker.layers.build_context import BuildContext
from baton_worker.models import ARCHITECTURES
from baton_worker.models.build import build
from baton_worker.models.resolve import readable_config
from baton_worker.spec.config_limits import BOUNDS, KINDS
from baton_worker.spec.hf_config import read_config
from tests.oracles.checkpoints import MAKERS
from tests.support import tiny_models
from tests.support.worker.config_keys import changes, rewrite

KNOWN = (tiny_models.TRAITS.keys() | tiny_models.RELATIVES.keys()) - {*tiny_models.WRITTEN}
NAMES = [name for name in ARCHITECTURES.names() if name in KNOWN and name not in MAKERS]
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


ODD = ([1, 2], {"a": 1}, "x", None, -3, 10**30, True, 0.5, 0)
"""Values of every JSON type; few keys may have more than two of them."""


def with_odd_values(config: dict[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Each key of a config, and of the objects in it, with each odd value, and the config then."""
    for key, value in config.items():
        for odd in ODD:
            yield key, odd, json.dumps(config | {key: odd})
        if isinstance(value, dict):
            for name, odd, inner in with_odd_values(value):
                yield name, odd, json.dumps(config | {key: json.loads(inner)})


def test_a_key_of_another_type_is_refused_with_a_sentence(tmp_path: Path) -> None:
    """Lists and objects in place of sizes, numbers and names are refused by their key."""
    meta, refused = BuildContext(torch.device("meta"), torch.float32), 0
    for name in ("DeepseekV3ForCausalLM", "JambaForCausalLM"):
        tiny_models.tiny_config(name).save_pretrained(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": [name]}
        for key, odd, text in with_odd_values(config):
            (tmp_path / "config.json").write_text(text)
            try:
                read = read_config(tmp_path)
                spec = served_task(read, tmp_path).spec
                with readable_config(name, read):
                    build(spec, meta)
            except ModelError as error:
                refused += 1
                kind = {list: list, dict: SimpleNamespace}.get(type(odd))
                wrong = kind and (key in BOUNDS or kind not in KINDS.get(key, ("", (kind,)))[1])
                assert "\n" not in error.message and (key in error.message or not wrong), key
    assert refused > 200
