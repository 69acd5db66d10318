"""Drafts of EAGLE and EAGLE-3 heads are those of a plain recomputation over whole sequences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.checkpoint.load import LoadedModel, load_model
from baton_worker.layers.build_context import BuildContext
from tests.support.worker.draft_heads import random_tensors, save_head, with_head
from tests.support.worker.head_runs import check_drafts
from tests.support.worker.plain_heads import PlainHead, as_layer, tiny_llama
from tests.support.worker.scheduled_engine import DEVICE

MOST = 3
Reader = Callable[[Tensor], Tensor]


@pytest.fixture(scope="module")
def loaded(stories: Path) -> LoadedModel:
    return load_model(stories, BuildContext(DEVICE, torch.float32))


def config_of(loaded: LoadedModel, architecture: str, **fields: object) -> dict[str, object]:
    c = loaded.config
    names = "hidden_size vocab_size rms_norm_eps hidden_act max_position_embeddings"
    fixed = {name: getattr(c, name) for name in names.split()}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}
    layer = {"num_hidden_layers": 1, "rope_theta": 10000.0}
    return fixed | heads | layer | {"architectures": [architecture]} | fields


@pytest.mark.row("D01", "F08.04", "F08.13")
def test_eagle(loaded: LoadedModel, stories: Path, tmp_path: Path) -> None:
    """Two layers, the first without a norm before its attention, none behind the last."""
    config = config_of(loaded, "LlamaForCausalLM", num_hidden_layers=2)
    body, hidden = tiny_llama(config), loaded.spec.hidden
    tensors = as_layer(body, "layers.{layer}.")
    tensors |= random_tensors({"fc.weight": (hidden, 2 * hidden), "fc.bias": (hidden,)})
    stored = {n: t for n, t in tensors.items() if n != "layers.0.input_layernorm.weight"}
    table = body.embed_tokens.weight.detach().clone()
    folder = save_head(tmp_path, stored | {"embed_tokens.weight": table}, **config)
    served = with_head(loaded, folder, "eagle")
    body.layers[0].input_layernorm = torch.nn.Identity()
    plain = PlainHead(body, stories, tensors["fc.weight"], tensors["fc.bias"])
    check_drafts(served, stories, plain.drafts(MOST), MOST)


@pytest.mark.row("D02", "F08.05", "F08.06")
def test_eagle3(loaded: LoadedModel, stories: Path, tmp_path: Path) -> None:
    """Three layers' inputs, a vocabulary of its own, either residual."""
    hidden, vocab = loaded.spec.hidden, 200
    ids = torch.arange(loaded.vocab_size)[:: loaded.vocab_size // vocab][:vocab]
    for normed in (False, True):
        config = config_of(
            loaded,
            "LlamaForCausalLMEagle3",
            draft_vocab_size=vocab,
            norm_before_residual=normed,
            eagle_aux_hidden_state_layer_ids=[0, 2, 4],
        )
        body = tiny_llama(config, width=2 * hidden)
        tensors = as_layer(body, "midlayer.") | random_tensors(
            {
                "fc.weight": (hidden, 3 * hidden),
                "midlayer.hidden_norm.weight": (hidden,),
                "norm.weight": (hidden,),
                "lm_head.weight": (vocab, hidden),
            }
        )
        maps = {"d2t": ids - torch.arange(vocab), "t2d": torch.zeros(loaded.vocab_size) > 0}
        served = with_head(
            loaded, save_head(tmp_path / str(normed), tensors | maps, **config), "eagle3"
        )
        plain = PlainHead(body, stories, tensors["fc.weight"], reads=(0, 2, 4))
        plain.joined(tensors["midlayer.hidden_norm.weight"], residual_normed=normed)
        plain.own_head(tensors["norm.weight"], tensors["lm_head.weight"], ids)
        check_drafts(served, stories, plain.drafts(MOST), MOST)


def test_a_head_for_another_model_is_refused_by_name(loaded: LoadedModel, tmp_path: Path) -> None:
    wide = config_of(loaded, "EagleLlamaForCausalLM", hidden_size=96)
    deep = config_of(loaded, "Eagle3LlamaForCausalLM", eagle_aux_hidden_state_layer_ids=[1, 40])
    few = config_of(loaded, "Eagle3LlamaForCausalLM", draft_vocab_size=9)
    few["eagle_aux_hidden_state_layer_ids"] = [0, 1, 2]
    for config, method, words in (
        (wide, "eagle", "96 channels"),
        (deep, "eagle3", "layers \\[1, 40\\]"),
        (few, "eagle3", "no d2t"),
    ):
        folder = save_head(tmp_path / words, {"fc.weight": torch.zeros(2, 2)}, **config)
        with pytest.raises(ModelError, match=words):
            with_head(loaded, folder, method)
