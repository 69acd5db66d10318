"""params.json as a config."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.spec.mistral_params import config_of

pytestmark = pytest.mark.row("L11")
MOE = {"num_experts": 8, "num_shared_experts": 1, "num_experts_per_tok": 2}
PARAMS: dict[str, Any] = {"dim": 48, "qk_nope_head_dim": 10, "moe": MOE}


def test_settings_have_the_names_of_transformers() -> None:
    yarn = {"factor": 36, "original_max_position_embeddings": 8192, "apply_scale": False}
    scaling = {"beta": 0.1, "original_max_position_embeddings": 8192}
    quantization = {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}
    config = config_of(
        PARAMS | {"yarn": yarn, "llama_4_scaling": scaling, "quantization": quantization}
    )
    assert (config.hidden_size, config.n_routed_experts, config.n_shared_experts) == (48, 8, 1)
    assert config.rope_parameters.mscale_all_dim == 0 and config.rope_parameters.factor == 36
    assert config.rope_parameters.llama_4_scaling_beta == 0.1
    assert vars(config.quantization_config) == {
        "quant_method": "fp8",
        "activation_scheme": "static",
    }
    quantization["qscheme_act"] = "NO_SCALES"
    given = config_of(PARAMS | {"quantization": quantization}).quantization_config
    assert given.activation_scheme == "dynamic"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"moe": None}, "config.json"),
        ({"qk_nope_head_dim": None}, "config.json"),
        ({"moe": MOE | {"route_every_n": 2}}, "route_every_n"),
        ({"moe": MOE | {"num_expert_groups": 4}}, "4 groups"),
        ({"quantization": {"qformat_weight": "int3"}}, "int3"),
        ({"quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "ROW"}}, "ROW"),
        ({"quantization": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
        (
            {
                "yarn": {"factor": 2, "original_max_position_embeddings": 8},
                "llama_4_scaling": {"beta": 0.1, "original_max_position_embeddings": 16},
            },
            "two values",
        ),
    ],
)
def test_what_is_not_read_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        config_of(PARAMS | change)
