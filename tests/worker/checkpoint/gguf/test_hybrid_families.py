"""Fields of decoders with recurrent layers in GGUF files; `test_conversion.py` loads a file of
each."""

from __future__ import annotations

from baton_worker.checkpoint.gguf.hybrid_families import HYBRIDS
from tests.support.worker.gguf_metadata import Fake

SCANS = {
    "ssm__inner_size": 32,
    "ssm__state_size": 4,
    "ssm__time_step_rank": 2,
    "ssm__group_count": 1,
    "ssm__conv_kernel": 4,
    "embedding_length": 16,
    "attention__layer_norm_rms_epsilon": 1e-5,
    "attention__key_length": 8,
}


def test_tensors_say_what_a_layer_is() -> None:
    tensors = ["blk.0.ssm_a", "blk.1.ffn_up.weight", "blk.2.attn_q.weight", "blk.3.ssm_a"]
    file = Fake(
        **SCANS,
        block_count=4,
        attention__head_count_kv=[0, 0, 2, 0],
        **{"rows ffn_up": 64},
        tensors=[*tensors, "blk.3.ssm_conv1d.bias"],
    )
    fields = HYBRIDS["nemotron_h"].fields(file)
    assert fields["hybrid_override_pattern"] == "M-*M"
    assert (fields["num_key_value_heads"], fields["intermediate_size"]) == (2, 64)
    assert fields["use_conv_bias"] and not fields["use_bias"]


def test_a_granite_that_rotates_is_a_bamba() -> None:
    file = Fake(
        **SCANS,
        block_count=3,
        attention__head_count=4,
        attention__head_count_kv=[0, 2, 0],
        rope__dimension_count=4,
        rope__scaling__finetuned=True,
        tensors=["blk.0.ssm_a", "blk.1.attn_q.weight", "blk.2.ssm_a"],
    )
    fields = HYBRIDS["granitehybrid"].fields(file)
    assert fields["architectures"] == ["BambaForCausalLM"]
    assert (fields["attn_layer_indices"], fields["partial_rotary_factor"]) == ([1], 0.5)
