"""A machine whose CPU passes for a GPU: layers choose the kernels in Triton."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from baton_worker.attention.selector import AttentionSelector
from baton_worker.kernels import packed_linear, triton
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kernels.gptq import GptqWeight
from baton_worker.kernels.moe.selector import ExpertKernelSelector
from baton_worker.kernels.moe.triton import TritonExperts
from baton_worker.kernels.recurrent.convolution import CpuConvolution
from baton_worker.kernels.recurrent.delta import CpuDelta
from baton_worker.kernels.recurrent.scan import CpuScan
from baton_worker.kernels.recurrent.ssm_states import CpuStates
from baton_worker.layers.attention import gqa
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.rope import rope

_IN_CPP = (CpuLinear, CpuStates, CpuConvolution, CpuDelta, CpuScan, gqa, rope)


def use(patch: pytest.MonkeyPatch) -> None:
    """From now on layers are built on the kernels of GPUs."""
    for kernel in _IN_CPP:
        patch.setattr(kernel, "refuses", lambda *_: "not today")
    patch.setattr(TritonExperts, "refuses", lambda *_: None)
    patch.setattr(triton, "runs", lambda device: True)
    patch.setattr(packed_linear, "runs", lambda device: True)
    patch.setattr(GptqWeight, "blocks", lambda self: None)


def context(**fields: Any) -> BuildContext:
    """Settings of such layers."""
    kernels: dict[str, Any] = {
        "attention": AttentionSelector("triton"),
        "experts": ExpertKernelSelector("triton"),
    }
    return BuildContext(torch.device("cpu"), torch.float32, **kernels | fields)
