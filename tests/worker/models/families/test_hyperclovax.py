"""Configs of HyperCLOVA X SEED Vision; the numbers are those of the test of published layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_worker.models.families.hyperclovax import hyperclovax_vision
from baton_worker.spec import Dense, Newlines
from baton_worker.spec.hf_config import read_config
from tests.oracles.towers.sights import makers


def test_tiles_projectors_and_what_is_refused(tmp_path: Path) -> None:
    makers()["HCXVisionForCausalLM"](tmp_path)
    config = read_config(tmp_path)
    config.possible_resolutions, config.max_num_grids, config.use_1x1_grid = [], 3, True
    config.text_config.padded_vocab_size = config.text_config.vocab_size + 8
    for kind, names in (
        ("linear", ["mm_projector"]),
        ("mlp", ["mm_projector.fc1", "mm_projector.fc2"]),
        ("inverted_mlp", ["mm_projector.fc1", "mm_projector.fc2"]),
    ):
        config.mm_projector_type = kind
        decoder = hyperclovax_vision(config)
        assert decoder.vocab == config.text_config.padded_vocab_size and decoder.tower is not None
        steps, rows = decoder.tower.projector, decoder.tower.arrangement
        assert [step.name for step in steps if isinstance(step, Dense)] == names
        assert isinstance(rows, Newlines) and rows.patches == 6
        assert rows.offered == ((30, 30), (30, 60), (30, 90), (60, 30), (90, 30))
    config.mm_projector_type = "resampler"
    with pytest.raises(AttributeError, match="mm_projector_type resampler is unknown"):
        hyperclovax_vision(config)
    config.unpad = False
    with pytest.raises(AttributeError, match="anyres and unpad are not both true"):
        hyperclovax_vision(config)
