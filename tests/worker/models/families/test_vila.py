"""Configs of VILA and NVILA; the numbers are those of the test of published layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_worker.models.families.vila import vila
from baton_worker.spec import Dense, Normed, Unfold
from baton_worker.spec.hf_config import read_config
from tests.oracles.towers.sights import makers


def test_projectors_and_what_is_refused(tmp_path: Path) -> None:
    makers()["LlavaLlamaModel"](tmp_path)
    config = read_config(tmp_path)
    for kind, names in (
        ("mlp_downsample_2x2_fix", ["", "1", "2", "4"]),
        ("mlp_downsample_3x3_fix", ["", "1", "2", "4", "5", "7"]),
        ("mlp2x_gelu", ["0", "2"]),
    ):
        config.mm_projector_cfg.mm_projector_type = kind
        tower = vila(config).tower
        assert tower is not None
        steps = tower.projector
        assert all(isinstance(step, Dense | Normed | Unfold) for step in steps)
        assert [getattr(step, "name", "").rpartition(".")[2] for step in steps] == names
        assert [s for s in steps if isinstance(s, Dense)][-1].outputs == tower.hidden
    config.mm_projector_cfg.mm_projector_type = "mlp_downsample"
    with pytest.raises(AttributeError, match="mm_projector_type mlp_downsample is not one of"):
        vila(config)
    for field, value, match in (
        ("mm_vision_select_feature", "patch", "would drop a patch"),
        ("image_aspect_ratio", "pad", "image_aspect_ratio pad is unknown"),
        ("dynamic_s2", True, "images of several scales are unknown"),
    ):
        setattr(config, field, value)
        with pytest.raises(AttributeError, match=match):
            vila(config)
