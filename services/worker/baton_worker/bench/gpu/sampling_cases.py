"""Sampling of one token per row, greedy, plain and truncated."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from baton.protocol import Sampling
from baton_worker.bench.gpu.case_inputs import CaseInputs
from baton_worker.bench.gpu.kernel_case import KernelCase
from baton_worker.sampling import PARAMETERS, Sampler, device_columns, fill, truncations

_SAMPLINGS = {
    "greedy": Sampling(1, temperature=0.0),
    "plain": Sampling(1),
    "top_p": Sampling(1, temperature=0.8, top_p=0.9, top_k=50),
}


def cases(inputs: CaseInputs) -> Iterator[KernelCase]:
    """Each of the parameters, for all rows."""
    for name, sampling in _SAMPLINGS.items():
        yield _sampling(inputs, name, sampling)


def _sampling(inputs: CaseInputs, name: str, sampling: Sampling) -> KernelCase:
    sizes = inputs.sizes
    logits = inputs.random(sizes.rows, sizes.vocab, scale=3.0).float()
    parameters = np.zeros(sizes.rows, PARAMETERS)
    for row in range(sizes.rows):
        fill(parameters[row], sampling)
        parameters[row]["key_low"] = row
    index = np.arange(sizes.rows)
    columns = {
        name: torch.from_numpy(values).to(inputs.device)
        for name, values in device_columns(parameters).items()
    }
    there = torch.from_numpy(index).to(inputs.device)
    needed = truncations(parameters)
    launch = partial(Sampler.launch, greedy=name == "greedy", truncations=needed)

    def run() -> Tensor:
        return launch(logits, columns, there)[0].long()

    def reference() -> Tensor:
        tokens = Sampler().sample(logits.cpu(), parameters, index)
        return torch.from_numpy(tokens).to(inputs.device).long()

    return KernelCase(f"sampling, {name}", run, reference, logits.nbytes, 0)
