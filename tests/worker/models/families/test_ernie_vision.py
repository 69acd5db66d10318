"""What ERNIE 4.5 VL reads from a config as Baidu writes it."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import SettingsError
from baton_worker.distributed.shard_spec import Shard, deal
from baton_worker.spec import ModalityMoe, Sections


def test_experts_of_images_stand_behind_those_of_texts(spec_of: Any) -> None:
    spec = spec_of(
        "Ernie4_5_VLMoeForConditionalGeneration",
        head_dim=128,
        moe_num_experts=[64, 32],
        moe_intermediate_size=[40, 16],
        moe_layer_start_index=[1, 1],
        moe_layer_end_index=[3, 3],
        moe_num_shared_experts=2,
        moe_k=6,
        rope_scaling={"type": "default", "mrope_section": [22, 22, 20]},
        vision_config={"depth": 2},
    )
    rope = spec.layers[0][0].rope
    assert rope.sections == Sections((22, 22, 20), "grid")
    assert rope.interleaved and rope.base == 500_000.0
    assert [isinstance(ffn, ModalityMoe) for _, ffn in spec.layers] == [False, True, True, True]
    moe = spec.layers[1][1]
    assert (moe.text.router.num_experts, moe.text.router.top_k) == (64, 6)
    assert (moe.media.router.num_experts, moe.media.router.top_k) == (32, 6)
    widths = (moe.text.expert, moe.media.expert, moe.shared)
    assert [glu.intermediate for glu in widths] == [40, 16, 80]
    assert set(moe.tokens) == {100_295, 103_367, *range(101_304, 101_308)}
    renames = dict(spec.tensors.renames)
    assert [to for to in renames.values() if "media_experts.31." in to]
    with pytest.raises(SettingsError, match="do not share experts of images"):
        deal(spec, Shard(0, 2))
