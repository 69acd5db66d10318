"""A state space against the recurrence that it stands for, token by token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker import spec
from baton_worker.kernels.recurrent.ssm_states import Snapshots
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.ssm.mamba2 import StateSpace
from tests.fakes.random_weights import fill
from tests.fakes.state_layers import (
    empty,
    in_chunks,
    ragged,
    run,
)

OPERATIONS = [f"F07.{number:02}" for number in range(5, 11)]
pytestmark = [
    pytest.mark.usefixtures("seeded"),
    pytest.mark.row("F04.20", "F07.02", "F07.03", "F07.04", *OPERATIONS),
]
CPU = torch.device("cpu")
SETTINGS = spec.StateSpace(
    num_heads=6,
    head_dim=4,
    num_groups=2,
    state_size=5,
    taps=4,
    norm=spec.GatedNorm(1e-5, 2),
    limits=(0.1, 0.9),
    bias=True,
)
FORMS = {
    "as they come": SETTINGS,
    "one group, no norm": replace(SETTINGS, num_groups=1, norm=None, limits=(0.0, float("inf"))),
    "no convolution": replace(SETTINGS, taps=1, conv_bias=False, num_groups=6),
}
PROJECTED = [f"ssm_{part}.weight" for part in ("gate", "c", "x", "b", "dt")]
Weights = dict[str, Tensor]


@pytest.fixture(params=FORMS.values(), ids=FORMS.keys())
def settings(request: pytest.FixtureRequest) -> spec.StateSpace:
    found: spec.StateSpace = request.param
    return found


class First(torch.nn.Module):
    """In the place of a projection: what it is given, as it is."""

    def forward(self, x: Tensor, residual: None) -> Tensor:
        return x


def made(settings: spec.StateSpace, context: BuildContext) -> tuple[StateSpace, Weights]:
    layer = StateSpace(settings, 10, context)
    weights = fill(layer)
    layer.taps.process_weights_after_loading()
    if layer.norm is not None:
        layer.norm.process_weights_after_loading()
    return layer, weights


def project(x: Tensor, w: Weights, role: str) -> Tensor:
    return F.linear(x, w[f"{role}.weight"], w.get(f"{role}.bias"))


def convolved(x: Tensor, w: Weights, part: str) -> Tensor:
    """[T, channels] to the same, each token with those before it."""
    inputs, weight = project(x, w, f"ssm_{part}"), w[f"ssm_conv_{part}.weight"]
    padded = F.pad(inputs.T, (weight.shape[-1] - 1, 0))[None]
    bias = w.get(f"ssm_conv_{part}.bias")
    return F.silu(F.conv1d(padded, weight, bias, groups=len(weight))[0].T)


def recurrent(x: Tensor, w: Weights, settings: spec.StateSpace) -> Tensor:
    """One text [T, hidden]: a state that every token changes."""
    heads, groups = settings.num_heads, settings.num_groups
    inner, b, c = (convolved(x, w, part) for part in "xbc")
    dt = F.softplus(project(x, w, "ssm_dt") + w["ssm.dt_bias"]).clamp(*settings.limits)
    state, rows = torch.zeros(settings.state), list[Tensor]()
    for t in range(len(x)):
        values = inner[t].view(heads, -1)
        keys, query = (
            part[t].view(groups, -1).repeat_interleave(heads // groups, 0) for part in (b, c)
        )
        left = torch.exp(-w["ssm.A_log"].exp() * dt[t])[:, None, None]
        state = left * state + dt[t][:, None, None] * keys[:, :, None] * values[:, None]
        rows.append(((query[:, None] @ state)[:, 0] + w["ssm.D"][:, None] * values).flatten())
    read, gate = torch.stack(rows), F.silu(project(x, w, "ssm_gate"))
    if settings.norm is None:
        return project(read * gate, w, "ssm_output")
    parts = torch.unflatten(read * gate, 1, (settings.norm.groups, -1))
    normed = F.rms_norm(parts, parts.shape[-1:], None, settings.norm.eps).flatten(1)
    return project(normed * w["ssm_norm.weight"], w, "ssm_output")


@pytest.mark.parametrize("chunk", [1, 7, 16, 70])
@pytest.mark.parametrize("page_size", [1, 4, 24, 32])
def test_a_text_in_chunks_is_the_recurrence(
    context: BuildContext, settings: spec.StateSpace, chunk: int, page_size: int
) -> None:
    layer, weights = made(settings, context)
    x = torch.randn(70, 10)
    out = in_chunks(layer, settings, x, chunk, page_size)
    torch.testing.assert_close(out, recurrent(x, weights, settings), atol=1e-4, rtol=1e-4)


def test_texts_of_a_ragged_step_do_not_mix(context: BuildContext) -> None:
    layer, weights = made(SETTINGS, context)
    texts = [torch.randn(length, 10) for length in (21, 9, 4, 13)]
    for text, ours in zip(texts, ragged(layer, SETTINGS, texts, (20, 3, 0, 8)), strict=True):
        torch.testing.assert_close(ours, recurrent(text, weights, SETTINGS), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bits_depend_on_no_cut_and_no_neighbour(context: BuildContext, dtype: torch.dtype) -> None:
    """From the projection on, which is made once: beside texts of other lengths."""
    layer, weights = made(SETTINGS, replace(context, dtype=dtype))
    projected, results = (
        torch.randn(73, sum(len(weights[name]) for name in PROJECTED)).to(dtype),
        list[Tensor](),
    )
    bare: Any = layer
    bare.project, bare.output = torch.nn.Identity(), First()
    for cut in (0, 1, 16, 33, 69):
        full, parts = empty(SETTINGS, 20, 16), list[Tensor]()
        pages = Snapshots(full.tokens.to(dtype), full.states)
        for begin, end in ((0, cut), (cut, 70)):
            if begin == end:
                continue
            tables, texts = [[9, 3, 7, 1, 5], [0, 2, 4, 6, 8]], [projected[begin:end]]
            parts.append(run(layer, [*texts, projected[70:]], [begin, 0], tables, pages)[0])
        results.append(torch.cat(parts))
    assert all(torch.equal(result, results[0]) for result in results)


def test_what_comes_later_in_a_page_counts_nothing(context: BuildContext) -> None:
    """A copied page holds tokens of somebody else behind those that it was copied for."""
    layer, weights = made(SETTINGS, context)
    x, pages = torch.randn(6, 10), empty(SETTINGS, 3, 4)
    run(layer, [x[:5]], [0], [[2, 0]], pages)
    pages.tokens[0, 1:] = 1e4
    [row] = run(layer, [x[5:]], [5], [[2, 0]], pages)
    expected = recurrent(x, weights, SETTINGS)[5:]
    torch.testing.assert_close(row, expected, atol=1e-4, rtol=1e-4)


def test_rates_stay_in_float32(context: BuildContext) -> None:
    """They are exponentiated; a checkpoint in bfloat16 has them in float32."""
    _, weights = made(SETTINGS, replace(context, dtype=torch.bfloat16))
    assert {weights[f"ssm.{name}"].dtype for name in ("A_log", "D", "dt_bias")} == {torch.float32}
    assert weights["ssm_x.weight"].dtype is torch.bfloat16
