"""What backends share whose kernels are in packages of others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from baton.errors import ModelError
from baton_worker.attention.backends.gpu_packages import (
    GpuPackage,
    lengths,
    offsets,
    ragged,
    split,
)
from baton_worker.attention.selector import AttentionSelector
from baton_worker.kernels.page_layout import Layout
from tests.fakes.attention_packages import hopper, install

LIBRARY = GpuPackage("nobodys_attention", "`pip install nobodys-attention`", (8, 0))
CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param(
            "flash_attn",
            "flash_attn is not installed: `pip install flash-attn`, or take triton",
            marks=pytest.mark.row("F04.03", refuses=True),
        ),
        pytest.param(
            "flashinfer",
            "flashinfer is not installed: `pip install flashinfer-python`, or take triton",
            marks=pytest.mark.row("F04.04", "F04.05", refuses=True),
        ),
        pytest.param(
            "flashinfer_mla",
            "flashinfer is not installed: `pip install flashinfer-python`, or take triton",
            marks=pytest.mark.row("F04.06", refuses=True),
        ),
        pytest.param(
            "flash_attn_mla",
            "flash_attn_interface is not installed: `pip install` the folder hopper of",
            marks=pytest.mark.row("F04.25", refuses=True),
        ),
    ],
)
def test_a_package_that_is_not_installed_is_refused_with_what_to_do(
    problem: Any, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.setattr("baton_worker.attention.backends.gpu_packages.find_spec", lambda name: None)
    call = replace(problem([(1, 1)]).call, head_dim=64, dtype=torch.bfloat16)
    with pytest.raises(ModelError, match="No attention backend serves") as refusal:
        AttentionSelector(name).select(call)
    assert said in refusal.value.message


def test_what_neither_machine_nor_kernels_can_do_is_said(
    problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = replace(problem([(1, 1)]).call, dtype=torch.bfloat16, device=CUDA)
    install(monkeypatch, "nobodys_attention")
    hopper(monkeypatch)
    assert LIBRARY.refuses(call) is None
    assert LIBRARY.refuses(replace(call, device=torch.device("cpu"))) == "it needs an NVIDIA GPU"
    assert "no kernel for torch.float32" in str(LIBRARY.refuses(replace(call, dtype=torch.float32)))
    hopper(monkeypatch, (7, 5))
    assert str(LIBRARY.refuses(call)).endswith("compute capability 8.0, this one has 7.5")
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert LIBRARY.refuses(call) == "it needs an NVIDIA GPU"


@pytest.mark.parametrize("layout", Layout)
def test_keys_and_values_are_views_of_the_pages(problem: Any, layout: Layout) -> None:
    call = problem([(1, 1)]).call
    for change, planes, width in (({}, 2, 8), ({"value_dim": 3}, 1, 11), ({"latent": True}, 1, 8)):
        pages = layout.zeros((5, 4, planes, 2, width), dtype=torch.float32, device=call.device)
        pages.copy_(torch.randn(pages.shape))
        key, value = split(pages, replace(call, **change))
        assert key.data_ptr() == pages.data_ptr() and key.stride(-1) == 1
        assert torch.equal(key, pages[:, :, 0, :, :8])
        expected = pages[:, :, 1] if planes == 2 else pages[:, :, 0, :, 8 % width :]
        assert torch.equal(value, expected)


def test_a_latent_begins_with_its_value(problem: Any) -> None:
    pages = torch.randn(5, 4, 1, 1, 8)
    call = replace(problem([(1, 1)]).call, latent=True, num_kv_heads=1, value_dim=6)
    assert torch.equal(split(pages, call)[1], pages[:, :, 0, :, :6])


def test_what_lies_one_behind_the_other(problem: Any) -> None:
    assert lengths(problem([(1, 30), (5, 0)]).batch).tolist() == [31, 5]
    owner, place = ragged(np.asarray([2, 0, 3]))
    assert owner.tolist() == [0, 0, 2, 2, 2] and place.tolist() == [0, 1, 0, 1, 2]
    assert offsets(np.asarray([2, 0, 3])).tolist() == [0, 2, 2, 5]
    assert offsets(np.asarray([2])).dtype == np.int32
