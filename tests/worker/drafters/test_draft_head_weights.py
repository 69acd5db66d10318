"""Which head a checkpoint holds is seen from its config."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.errors import ModelError
from baton_worker.config import Config
from baton_worker.drafters.draft_head_weights import head_config, method_of_head
from tests.support.worker.draft_heads import save_head


@pytest.mark.row("F08.13")
def test_the_method_is_that_of_the_checkpoint(stories: Path, tmp_path: Path) -> None:
    for number, (config, name, method) in enumerate(
        (
            ({"architectures": ["MedusaModel"]}, "MedusaModel", "medusa"),
            ({"model_type": "medusa"}, "MedusaModel", "medusa"),
            ({"medusa_num_heads": 5}, "MedusaModel", "medusa"),
            ({"model_type": "mlp_speculator"}, "MLPSpeculatorPreTrainedModel", "mlp_speculator"),
        )
    ):
        folder = save_head(tmp_path / str(number), {}, **config)  # type: ignore[arg-type]
        assert head_config(folder).architecture == name
        assert method_of_head(Config(model="x"), str(folder)) == method
    assert method_of_head(Config(model="x"), str(stories)) == "", "a whole model"
    with pytest.raises(ModelError, match="LlamaForCausalLM"):
        head_config(stories)
