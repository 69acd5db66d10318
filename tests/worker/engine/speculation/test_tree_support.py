"""Models and settings for which drafts cannot be trees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from baton.errors import SettingsError
from baton_worker.checkpoint.load import load_model
from baton_worker.config import Config
from baton_worker.engine.speculation.tree_support import check_tree
from baton_worker.layers.build_context import BuildContext
from baton_worker.spec import ShortConv
from baton_worker.speculative.config import SpeculativeConfig


@pytest.mark.row("F08.11")
def test_what_cannot_verify_trees_is_refused_by_name(stories: Path) -> None:
    loaded = load_model(stories, BuildContext(torch.device("cpu"), torch.float32))
    wide = SpeculativeConfig(2, "eagle", "a", speculative_token_tree="[(0,), (1,)]")
    forked = SpeculativeConfig(3, "eagle", "a", speculative_token_tree="[(0,), (1,), (1, 0)]")
    recurrent = replace(loaded.spec, layers=((ShortConv(64, 3), None), *loaded.spec.layers))
    check_tree(wide, loaded, Config())
    check_tree(SpeculativeConfig(9), replace(loaded, spec=recurrent), Config(exact=True))
    check_tree(replace_method(forked, "medusa"), loaded, Config())
    for speculative, model, config, words in (
        (wide, loaded, Config(exact=True), "--exact"),
        (wide, loaded, Config(tensor_parallel_size=2), "one process"),
        (wide, replace(loaded, spec=recurrent), Config(), "ShortConv"),
        (forked, loaded, Config(), "only the first"),
    ):
        with pytest.raises(SettingsError, match=words):
            check_tree(speculative, model, config)


def replace_method(config: SpeculativeConfig, method: str) -> SpeculativeConfig:
    tree = config.speculative_token_tree
    return SpeculativeConfig(3, method, "a", speculative_token_tree=tree)
