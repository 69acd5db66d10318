"""Rope frequencies against transformers' own functions, and the rotation against its formula."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.errors import ModelError
from baton_worker import spec
from baton_worker.layers.rope.rope import (
    FREQUENCIES,
    Rotary,
    dynamic,
    ntk,
    rotate_,
)
from baton_worker.models.families.common import rope

HEAD_DIM = 64
CPU = torch.device("cpu")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
SETTINGS = [
    pytest.param({"rope_type": "default"}, marks=pytest.mark.row("F05.01"), id="default"),
    pytest.param(
        {"rope_type": "linear", "factor": 3.0}, marks=pytest.mark.row("F05.02"), id="linear"
    ),
    pytest.param(
        {"rope_type": "dynamic", "factor": 2.0}, marks=pytest.mark.row("F05.03"), id="dynamic"
    ),
    pytest.param(
        {"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 2.0},
        marks=pytest.mark.row("F05.02"),
        id="proportional",
    ),
    pytest.param(YARN, marks=pytest.mark.row("F05.05"), id="yarn"),
    pytest.param(
        YARN | {"beta_fast": 16, "beta_slow": 2, "truncate": False},
        marks=pytest.mark.row("F05.05"),
        id="yarn-betas",
    ),
    pytest.param(
        YARN | {"mscale": 0.707, "mscale_all_dim": 0.5},
        marks=pytest.mark.row("F05.05"),
        id="yarn-mscale",
    ),
    pytest.param(
        YARN | {"attention_factor": 1.25}, marks=pytest.mark.row("F05.05"), id="yarn-attention"
    ),
    pytest.param(
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
        marks=pytest.mark.row("F05.06"),
        id="llama3",
    ),
]


def fields(parameters: dict[str, Any], **extra: Any) -> dict[str, Any]:
    return {
        "hidden_size": 4 * HEAD_DIM,
        "num_attention_heads": 4,
        "max_position_embeddings": 2048,
        "rope_parameters": {"rope_theta": 50_000.0} | parameters,
    } | extra


def oracle(parameters: dict[str, Any], length: int | None = None) -> tuple[torch.Tensor, float]:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(**fields(parameters))
    if parameters["rope_type"] == "default":
        return LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, None, length)
    return frequencies, factor


def ours(parameters: dict[str, Any]) -> spec.Rope:
    values = fields(parameters)
    values["rope_parameters"] = SimpleNamespace(**values["rope_parameters"])
    return rope(SimpleNamespace(**values), HEAD_DIM)


@pytest.mark.parametrize("parameters", SETTINGS)
def test_frequencies_match_transformers(parameters: dict[str, Any]) -> None:
    frequencies, factor = FREQUENCIES[parameters["rope_type"]](ours(parameters))
    expected, expected_factor = oracle(parameters)
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert factor == pytest.approx(expected_factor)


@pytest.mark.row("F05.03")
@pytest.mark.parametrize("length", [100, 2048, 3000, 8192])
def test_dynamic_scaling_grows_with_the_length_as_in_transformers(length: int) -> None:
    parameters = {"rope_type": "dynamic", "factor": 2.0}
    frequencies, _ = dynamic(ours(parameters), length)
    torch.testing.assert_close(frequencies, oracle(parameters, length)[0], rtol=1e-6, atol=0)


def test_older_configs_say_the_same_with_rope_scaling() -> None:
    values = fields({})
    del values["rope_parameters"]
    older = SimpleNamespace(
        **values, rope_theta=50_000.0, rope_scaling=SimpleNamespace(type="linear", factor=3.0)
    )
    assert rope(older, HEAD_DIM) == ours({"rope_type": "linear", "factor": 3.0})


def test_gguf_factors_equal_llama3() -> None:
    parameters = SETTINGS[-1].values[0]
    assert isinstance(parameters, dict)
    expected, _ = oracle(parameters)
    plain, _ = oracle({"rope_type": "default"})
    settings = ours({"rope_type": "factors", "factors": (plain / expected).tolist()})
    torch.testing.assert_close(FREQUENCIES["factors"](settings)[0], expected)


def test_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"'spiral'.*default, backwards, linear"):
        Rotary(ours({"rope_type": "spiral"}), torch.device("cpu"))


@pytest.mark.row("F05.01")
@pytest.mark.parametrize("dim", [HEAD_DIM, HEAD_DIM // 2])
def test_rotation_matches_transformers(dim: int) -> None:
    from transformers.models.llama.modeling_llama import rotate_half

    settings = spec.Rope(dim, 10_000.0, 2048)
    positions = torch.tensor([0, 1, 77, 2047])
    heads = torch.randn(4, 3, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    phase = torch.outer(positions.float(), FREQUENCIES["default"](settings)[0])
    phase = torch.cat((phase, phase), -1)[:, None]
    part = heads[..., :dim]
    expected = torch.cat(
        (part * phase.cos() + rotate_half(part) * phase.sin(), heads[..., dim:]), -1
    )
    rotate_(heads, Rotary(settings, torch.device("cpu")).angles(positions, torch.float32))
    torch.testing.assert_close(heads, expected)


def test_attention_factor_scales_both_angles() -> None:
    device = torch.device("cpu")
    warm = Rotary(ours(YARN | {"attention_factor": 1.5}), device)
    cool = Rotary(ours(YARN | {"attention_factor": 1.0}), device)
    positions = torch.arange(5)
    warm_angles = warm.angles(positions, torch.float32)
    cool_angles = cool.angles(positions, torch.float32)
    torch.testing.assert_close(warm_angles.cos, 1.5 * cool_angles.cos)
    torch.testing.assert_close(warm_angles.sin, 1.5 * cool_angles.sin)


FACTORS = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 512,
    "short_factor": [1.0 + 0.1 * i for i in range(HEAD_DIM // 2)],
    "long_factor": [2.0 + 0.3 * i for i in range(HEAD_DIM // 2)],
}


def longrope(parameters: dict[str, Any], served: int | None) -> spec.Rope:
    values = fields(parameters, served_length=served)
    values["rope_parameters"] = SimpleNamespace(**values["rope_parameters"])
    return rope(SimpleNamespace(**values), HEAD_DIM)


@pytest.mark.row("F05.07")
@pytest.mark.parametrize("changes", [{}, {"factor": 3.0}, {"attention_factor": 1.5}])
@pytest.mark.parametrize(("served", "length"), [(None, 2048), (513, 513), (512, 512), (9, 9)])
def test_longrope_switches_on_the_longest_sequence_served(
    changes: dict[str, Any], served: int | None, length: int
) -> None:
    parameters = FACTORS | changes
    frequencies, factor = FREQUENCIES["longrope"](longrope(parameters, served))
    expected, expected_factor = oracle(parameters, length)
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert factor == pytest.approx(expected_factor)


def test_su_is_an_older_name_of_longrope() -> None:
    older = {key: value for key, value in FACTORS.items() if key != "rope_type"} | {"type": "su"}
    assert longrope(older, None) == longrope(FACTORS, None)


@pytest.mark.row("F05.16")
@pytest.mark.parametrize("alpha", [1.0, 50.0, 1000.0])
def test_a_fixed_alpha_stretches_the_base_as_in_hunyuan(alpha: float) -> None:
    from transformers import HunYuanDenseV1Config
    from transformers.models.hunyuan_v1_dense.modeling_hunyuan_v1_dense import (
        HunYuanDenseV1RotaryEmbedding,
    )

    parameters = {"rope_type": "dynamic", "factor": 1.0, "alpha": alpha}
    config = HunYuanDenseV1Config(**fields(parameters, head_dim=HEAD_DIM))
    settings = ours(parameters)
    assert settings.kind == "dynamic_alpha"
    frequencies, factor = FREQUENCIES["dynamic_alpha"](settings)
    expected, _ = HunYuanDenseV1RotaryEmbedding.compute_ntk_alpha_rope_parameters(config)
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert factor == 1.0


@pytest.mark.row("F05.04")
@pytest.mark.parametrize("factor", [2.0, 8.0])
def test_ntk_scaling_follows_its_formulas(factor: float) -> None:
    """transformers has no such kind: the formulas, written out channel by channel."""
    plain = ours({"rope_type": "ntk", "factor": factor})
    mixed = ours({"rope_type": "ntk", "factor": factor, "mixed_b": 0.6})
    half = HEAD_DIM // 2
    for channel in range(half):
        power = (50_000.0 * factor) ** (-2 * channel / HEAD_DIM)
        expected = power / factor ** (2 / HEAD_DIM)
        assert float(ntk(plain)[0][channel]) == pytest.approx(expected, rel=1e-5)
        stretch = factor ** ((channel + 1) ** 0.6 / half**0.6)
        expected = 50_000.0 ** (-2 * channel / HEAD_DIM) / stretch
        assert float(ntk(mixed)[0][channel]) == pytest.approx(expected, rel=1e-5)
    # The longest wavelength is stretched by the factor.
    slowest = 50_000.0 ** (-2 * (half - 1) / HEAD_DIM)
    assert float(ntk(mixed)[0][-1]) == pytest.approx(slowest / factor, rel=1e-5)


@pytest.mark.row("F05.01")
@pytest.mark.parametrize("dim", [HEAD_DIM, HEAD_DIM // 2])
def test_interleaved_rotation_matches_transformers(dim: int) -> None:
    from transformers.models.cohere.modeling_cohere import rotate_half

    settings = spec.Rope(dim, 10_000.0, 2048, interleaved=True)
    positions = torch.tensor([0, 1, 77, 2047])
    heads = torch.randn(4, 3, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    phase = torch.outer(positions.float(), FREQUENCIES["default"](settings)[0])
    phase = phase.repeat_interleave(2, dim=-1)[:, None]
    part = heads[..., :dim]
    expected = torch.cat(
        (part * phase.cos() + rotate_half(part) * phase.sin(), heads[..., dim:]), -1
    )
    rotate_(heads, Rotary(settings, torch.device("cpu")).angles(positions, torch.float32))
    torch.testing.assert_close(heads, expected)


@pytest.mark.parametrize("interleaved", [False, True])
def test_angles_of_one_layout_turn_the_same_pairs_in_the_other(interleaved: bool) -> None:
    made = [
        Rotary(spec.Rope(8, 100.0, 64, interleaved=which), CPU).angles(
            torch.arange(5), torch.float32
        )
        for which in (interleaved, not interleaved)
    ]
    other = made[0].laid_out(interleaved=not interleaved)
    assert other.interleaved != interleaved
    assert torch.equal(other.cos, made[1].cos) and torch.equal(other.sin, made[1].sin)
    assert made[0].laid_out(interleaved=interleaved) is made[0]


def test_angles_of_some_tokens() -> None:
    angles = Rotary(spec.Rope(8, 100.0, 64), CPU).angles(torch.arange(5), torch.float32)
    some = angles.of(torch.tensor([3, 1]))
    assert torch.equal(some.cos, angles.cos[[3, 1]]) and torch.equal(some.sin, angles.sin[[3, 1]])


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [("linear", {}), ("linear", {"factor": "2"}), ("llama3", {"factor": 2.0})],
)
def test_parameters_that_define_no_rope_are_refused(kind: str, parameters: dict[str, Any]) -> None:
    settings = spec.Rope(8, 10_000.0, 64, kind=kind, parameters=tuple(parameters.items()))
    with pytest.raises(ModelError, match=f"do not define the rope type '{kind}'"):
        Rotary(settings, torch.device("cpu"))
