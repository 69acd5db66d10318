"""Every Triton kernel on inputs of real layers, with a reference in float64."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from baton_worker.bench.gpu import (
    attention_cases,
    product_cases,
    recurrent_cases,
    sampling_cases,
    token_cases,
)
from baton_worker.bench.gpu.case_inputs import CaseInputs
from baton_worker.bench.gpu.expert_cases import PACKED, experts
from baton_worker.bench.gpu.kernel_case import KernelCase, Sizes


def cases(device: torch.device, dtype: torch.dtype, sizes: Sizes) -> Iterator[KernelCase]:
    """All kernels, one after the other: inputs of one are freed before those of the next."""
    inputs = CaseInputs(device, dtype, sizes)
    yield from token_cases.cases(inputs)
    for tokens in (1, sizes.rows, sizes.prompt):
        yield from product_cases.cases(inputs, tokens)
        for format in ("floats", *PACKED):
            yield experts(inputs, tokens, format)
    for tokens in (sizes.rows, sizes.prompt):
        yield from product_cases.tiles(inputs, tokens)
    yield from attention_cases.cases(inputs)
    yield from sampling_cases.cases(inputs)
    yield from recurrent_cases.cases(device, dtype, sizes)
