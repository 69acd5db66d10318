"""Checkpoints in the layout of the Marlin kernel: 4 bits about 8, in the order of tensor cores.

(Frantar et al. 2024, arXiv:2408.11743.) Its own checkpoints name the method `marlin`; AutoGPTQ
writes the same tensors and names `gptq` with `checkpoint_format` or `is_marlin_format`. Codes and
scales are brought back into the order of rows and columns, so no kernel here needs the layout.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.kernels.gptq import GptqWeight, unpack
from baton_worker.quantization.collect import Format, Formats, Parts

_BITS, _ZERO, _TILE = 4, 8, 16


def formats(settings: SimpleNamespace) -> Formats:
    """The only format: `B` int32 [K / 16, 2 N] and `s` [G, N]. Their size follows from the number
    of groups.

    Raises:
        ModelError: the settings are those of another layout.
    """
    options = vars(settings)
    if options.get("bits", _BITS) != _BITS or options.get("desc_act"):
        raise ModelError(
            "Marlin's layout holds 4 bits without act-order, and this config says otherwise. Use "
            "the checkpoint from which it was made."
        )
    form = Format(frozenset({"B", "s"}), _read, unread=frozenset({"workspace"}))
    return lambda module: form


def _read(parts: Parts) -> GptqWeight:
    words, scales = parts["B"], parts["s"]
    tiles, columns = len(words), words.shape[1] // 2
    stored = unpack(words.contiguous().view(torch.uint8), _BITS).reshape(-1, len(_order()))
    codes = stored[:, _order()].view(tiles, columns // _TILE, _TILE, _TILE)
    codes = codes.permute(1, 3, 0, 2).reshape(columns, -1)
    order = _scale_order(len(scales))
    scales = scales.reshape(-1, len(order))[:, order].view(len(scales), columns)
    return GptqWeight.of(codes, _BITS, scales, torch.full(scales.shape, _ZERO, dtype=torch.int16))


@cache
def _order() -> Tensor:
    """int64 [1024]: the place of each code of four tiles, tile by tile and row by row. A thread of
    32 has eight codes of each tile, and its words hold them even ones first."""
    thread, place = torch.meshgrid(torch.arange(32), torch.arange(8), indexing="ij")
    rows = 2 * (thread % 4) + place % 2 + place // 2 % 2 * 8
    columns = thread // 4 + place // 4 * 8
    one = rows * _TILE + columns
    four = torch.stack([one + 256 * tile for tile in range(4)], 1)
    return torch.argsort(four[..., [0, 2, 4, 6, 1, 3, 5, 7]].flatten())


def _scale_order(groups: int) -> Tensor:
    """int64: the place of each scale in a run of columns, 64 or, of a single group, 32."""
    if groups > 1:
        return torch.arange(64).view(8, 8).T.flatten()
    runs = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
    return torch.argsort(torch.tensor(runs))
