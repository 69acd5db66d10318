"""Drafts of EAGLE and EAGLE-3 heads are those of a plain recomputation over whole sequences."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
    DeepseekV3Config,
    DeepseekV3Model,
    GraniteConfig,
    GraniteModel,
    Llama4TextConfig,
    Llama4TextModel,
    Mistral4Config,
    Mistral4Model,
)

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.kv_cache import page_groups
from baton_worker.layers.build_context import BuildContext
from tests.support import tiny_models
from tests.support.worker.draft_heads import Tensors, random_tensors, save_head, with_head
from tests.support.worker.head_runs import check_drafts, without_drafts
from tests.support.worker.mistral_format import own_tensors, params_of
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


@pytest.mark.row("D02", "F08.05", "F08.06", "F08.07")
def test_eagle3(loaded: LoadedModel, stories: Path, tmp_path: Path) -> None:
    """Three layers' inputs, a vocabulary of its own, either residual; in the target's pages and in
    its own."""
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
        folder = save_head(tmp_path / str(normed), tensors | maps, **config)
        method = "eagle3_two_model" if normed else "eagle3"
        served = with_head(loaded, folder, method)
        own = len(served.kv_spec.layers) - len(loaded.spec.layers)
        assert (own, bool(served.drafter and served.drafter.page_bytes)) == (not normed, normed)
        plain = PlainHead(body, stories, tensors["fc.weight"], reads=(0, 2, 4))
        plain.joined(tensors["midlayer.hidden_norm.weight"], residual_normed=normed)
        plain.own_head(tensors["norm.weight"], tensors["lm_head.weight"], ids)
        check_drafts(served, stories, plain.drafts(MOST), MOST)


SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "vocab_size": 512,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
LATENT = {
    **{"q_lora_rank": 18, "kv_lora_rank": 14, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8},
    **{"v_head_dim": 12, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2},
    **{"moe_intermediate_size": 24, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
}


class Families:
    """Heads of other families for a target of five layers: each method stores one in a folder, and
    returns the re-computation of its drafts."""

    def __init__(self, folder: Path, target: Path) -> None:
        self._folder, self._target = folder, target

    def EagleDeepSeekMTPModel(self) -> PlainHead:
        """A dense layer and one of experts: numbers 5 and 6 behind the target's."""
        config = DeepseekV3Config(**SIZES, **LATENT)
        body, fused = _random(DeepseekV3Model(config)), _fused("enorm.weight", "hnorm.weight")
        said = config.to_dict() | {"first_k_dense_replace": 6}
        self._save(body, fused, said | {"architectures": ["DeepseekV3ForCausalLM"]})
        return self._plain(body, fused, "enorm.weight", "hnorm.weight")

    def EagleMistralLarge3ForCausalLM(self) -> PlainHead:
        """In Mistral's format; a dense layer and one of experts."""
        rope = tiny_models.TRAITS["Mistral4ForCausalLM"]["rope_parameters"]
        rope = rope | {"mscale": 1.0, "mscale_all_dim": 1.0, "factor": 16.0}
        config = Mistral4Config(**SIZES, **LATENT, rope_parameters=rope)
        body, fused = _random(Mistral4Model(config)), _fused()
        self._folder.mkdir()
        (self._folder / "params.json").write_text(json.dumps(params_of(config.to_dict())))
        tensors = own_tensors(as_layer(body, "model.layers.{layer}."))
        tensors |= {"eagle_linear.weight": fused["fc.weight"], "norm.weight": fused["norm.weight"]}
        save_file(tensors, self._folder / "consolidated.safetensors")
        return self._plain(body, fused)

    def EagleLlama4ForCausalLM(self) -> PlainHead:
        """Experts and a rope in number 5 behind the target's, neither in number 6."""
        own = {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size_mlp": 96}
        own |= {"head_dim": 16, "attention_chunk_size": 16, "floor_scale": 8, "attn_scale": 0.5}
        own |= {"interleave_moe_layer_step": 2, "no_rope_layers": [1, 0], "moe_layers": [0]}
        config = Llama4TextConfig(**SIZES, **own)
        body, fused = _random(Llama4TextModel(config)), _fused()
        said = config.to_dict() | {"architectures": ["EagleLlama4ForCausalLM"], "moe_layers": [1]}
        self._save(body, fused, said)
        return self._plain(body, fused)

    def EagleMiniCPMForCausalLM(self) -> PlainHead:
        """Granite's layers have such residuals; there is no final norm."""
        multipliers = {"residual_multiplier": 1.4 / 3**0.5, "attention_multiplier": 16**-0.5}
        body = _random(GraniteModel(GraniteConfig(**SIZES, **multipliers)))
        fused = _fused("input_norm1.weight", "input_norm2.weight")
        said = SIZES | {"scale_emb": 3, "scale_depth": 1.4, "dim_model_base": 16}
        said |= {"mup_denominator": 3, "architectures": ["MiniCPMForCausalLM"]}
        self._save(body, fused, said, layers="eagle_layers.{layer}.")
        return self._plain(body, fused, *list(fused)[2:], scale=16 / 64)

    def _save(
        self, body: Any, fused: Tensors, config: Any, layers: str = "layers.{layer}."
    ) -> None:
        tables = {"embed_tokens.weight": body.embed_tokens.weight.detach().clone()}
        save_head(self._folder, as_layer(body, layers) | fused | tables, **config)

    def _plain(self, body: Any, fused: Tensors, *norms: str, scale: float | None = None) -> Any:
        """A head with norms of its inputs, or none; hidden states are scaled, or else normed for
        the next draft."""
        eps, factor = SIZES["rms_norm_eps"], 1.0 if scale is None else scale

        def normed(weight: Tensor, factor: float = 1.0) -> Reader:
            return lambda x: F.rms_norm(x * factor, x.shape[-1:], weight, eps)

        both: dict[str, Any] = {}
        if norms:
            both["embedding_norm"] = normed(fused[norms[0]])
            both["hidden_norm"] = normed(fused[norms[1]], factor)
        if scale is None:
            both |= {"final_norm": normed(fused["norm.weight"]), "carries_normed": True}
        return PlainHead(body, self._target, fused["fc.weight"], **both)


def _random(body: Any) -> Any:
    """Random weights, reproducible and of a size that keeps that of vectors."""
    for number, parameter in enumerate(body.eval().parameters()):
        made = torch.Generator().manual_seed(number)
        draw = torch.randn(parameter.shape, generator=made)
        flat = parameter.ndim < 2
        parameter.data = 1.0 + 0.2 * draw if flat else draw * parameter.shape[-1] ** -0.5
    return body


def _fused(*norms: str) -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (64, 128), "norm.weight": (64,)}
    return random_tensors(shapes | dict.fromkeys(norms, (64,)))


@pytest.mark.row("D03", "D04", "D05", "D06", "F08.04", "F08.13")
def test_eagle_of_other_families(loaded: LoadedModel, stories: Path, tmp_path: Path) -> None:
    tokens = without_drafts(loaded)
    for architecture in (name for name in vars(Families) if name.startswith("Eagle")):
        folder = tmp_path / architecture
        plain = getattr(Families(folder, stories), architecture)()
        served = with_head(loaded, folder, "eagle")
        windows = page_groups(served.kv_spec, 4, torch.float32).windows
        num_pages = 200 if len(set(windows)) > 1 else 28
        check_drafts(served, None, plain.drafts(MOST), MOST, num_pages, tokens, every=15)


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
