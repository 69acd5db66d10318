"""Configs of latent attention models."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.families.mla import deepseek_v32, glm_moe_dsa, latent
from baton_worker.spec import Moe, SparseLatentAttention
from tests.support import tiny_models

FIELDS: dict[str, Any] = {
    **{"num_attention_heads": 6, "kv_lora_rank": 14, "qk_nope_head_dim": 10},
    **{"qk_rope_head_dim": 6, "v_head_dim": 12, "max_position_embeddings": 256},
}


def test_plain_rope_leaves_the_scale_alone() -> None:
    heads = latent(SimpleNamespace(**FIELDS))
    assert heads.scale == 0.25 and heads.width == 20 and heads.query_rank is None
    assert heads.rope.interleaved and heads.rope.dim == 6


@pytest.mark.parametrize(("weight", "expected"), [(0.0, 1.0), (1.0, 0.1 * math.log(40) + 1)])
def test_yarn_warms_the_scores(weight: float, expected: float) -> None:
    scaling = SimpleNamespace(
        type="yarn", factor=40, mscale_all_dim=weight, original_max_position_embeddings=64
    )
    heads = latent(SimpleNamespace(**FIELDS, rope_scaling=scaling))
    assert heads.scale == pytest.approx(0.25 * expected**2)


SPARSE: dict[str, Any] = {
    **FIELDS,
    **{"vocab_size": 90, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 6},
    **{"q_lora_rank": 18, "moe_intermediate_size": 24, "n_shared_experts": 1},
    **{"n_routed_experts": 8, "num_experts_per_tok": 2},
}


@pytest.mark.row("F04.26", "L04")
def test_every_layer_of_deepseek_has_an_index_that_turns_in_halves() -> None:
    spec = deepseek_v32(SimpleNamespace(**SPARSE, index_topk=40, index_head_dim=20))
    [heads] = {mixer for mixer, _ in spec.layers}
    assert isinstance(heads, SparseLatentAttention)
    assert (heads.top_k, heads.indexer.heads, heads.indexer.dim) == (40, 64, 20)
    assert heads.rope.interleaved and not heads.indexer.interleaved
    assert (heads.width, heads.kept_width) == (20, 40)
    assert [isinstance(ffn, Moe) for _, ffn in spec.layers] == [False] * 3 + [True] * 3


@pytest.mark.row("F04.26", "L05")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "FFFFFF"),
        ({"indexer_types": ["full", "full", "shared"] * 2}, "FFSFFS"),
        ({"index_topk_pattern": "FSSFSS"}, "FSSFSS"),
        ({"index_topk_pattern": ["full", "shared"] * 3}, "FSFSFS"),
        ({"index_topk_freq": 2}, "FFSFSF"),
        ({"index_topk_freq": 3, "index_skip_topk_offset": 3}, "FFFSSF"),
        ({"index_topk_freq": 0}, "FFFFFF"),
    ],
    ids=str,
)
def test_layers_of_glm_share_an_index_as_transformers_reads_it(
    given: dict[str, Any], expected: str
) -> None:
    from transformers import GlmMoeDsaConfig

    theirs = GlmMoeDsaConfig(num_hidden_layers=6, **given).indexer_types
    assert [kind[0].upper() for kind in theirs] == list(expected)
    spec = glm_moe_dsa(SimpleNamespace(**SPARSE, **given))
    heads = [mixer for mixer, _ in spec.layers if isinstance(mixer, SparseLatentAttention)]
    assert ["F" if each.indexer else "S" for each in heads] == list(expected)
    assert heads[0].indexer.heads == 32 and heads[0].indexer.interleaved


def test_a_first_layer_without_an_index_is_refused() -> None:
    with pytest.raises(ModelError, match="begin indexer_types"):
        glm_moe_dsa(SimpleNamespace(**SPARSE, index_topk_pattern="SFFFFF"))


@pytest.mark.row("F05.10")
@pytest.mark.parametrize("architecture", ["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"])
def test_the_scaling_of_deepseek_is_that_of_transformers(
    tmp_path: Path, driver: Any, architecture: str
) -> None:
    """YaRN with both weights, with equal ones, and as the paper has it: three sets of logits."""
    plain = {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16,
    }
    tokens, found = list(range(2, 60)), list[torch.Tensor]()
    for weights in ((0.8, 0.5), (0.8, 0.8), None):
        scaling = dict(zip(("mscale", "mscale_all_dim"), weights, strict=True)) if weights else {}
        folder = tmp_path / str(len(found))
        folder.mkdir()
        oracle = tiny_models.save_checkpoint(folder, architecture, rope_parameters=plain | scaling)
        with torch.inference_mode():
            expected = oracle(torch.tensor([tokens])).logits[0]
        loaded = load_model(folder, BuildContext(torch.device("cpu"), torch.float32))
        ours = driver(loaded, 1).step({0: tokens})[0]
        assert (ours - expected).abs().max() < 1e-3
        found.append(ours)
    for first, second in itertools.combinations(found, 2):
        assert (first - second).abs().max() > 0.1
