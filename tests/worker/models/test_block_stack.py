"""Two stacks share a cache: each plans and writes its own layers."""

from __future__ import annotations

from pathlib import Path

import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.kv_cache.layer_groups import one_group
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.decoder import Model
from tests.support.worker.page_driver import Driver


def test_hidden_states_that_a_head_reads_change_no_logits(stories: Path) -> None:
    """The last feed-forward is not deferred then, and inputs of layers stand behind the states."""
    loaded = load_model(stories, BuildContext(torch.device("cpu"), torch.float32))
    model = loaded.model
    assert isinstance(model, Model)
    assert model.cached == slice(0, len(loaded.spec.layers))
    assert one_group(loaded.spec, 4).of[model.cached] == (0,) * len(loaded.spec.layers)
    prompt = [1, 403, 407, 261, 378]
    made = []
    for inputs in (None, (), (0, 2)):
        model.draft_inputs = inputs
        driver = Driver(loaded, 1)
        hidden = driver.hidden({0: prompt})
        made.append((hidden, model.logits(hidden)))
    assert made[1][0].shape == (5, model.width) and made[2][0].shape == (5, 3 * model.width)
    assert torch.equal(made[1][0], made[2][0][:, : model.width])
    embedded = model.embedding(torch.tensor(prompt), torch.arange(5))
    assert torch.equal(made[2][0][:, model.width : 2 * model.width], embedded)
    for _, logits in made[1:]:
        assert torch.equal(logits, made[0][1])
