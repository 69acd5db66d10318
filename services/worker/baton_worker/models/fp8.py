"""Checkpoints in 8-bit floats with one scale per block, as DeepSeek-V3 publishes them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

_SCALE = "_scale_inv"


def dequantise(weight: Tensor, scales: Tensor, block: tuple[int, int]) -> Tensor:
    """float8 [..., rows, columns] and float32 [..., ceil(rows / a), ceil(columns / b)] to float32.

    The scale of a block of a x b multiplies its values (DeepSeek-V3, arXiv:2412.19437, 3.3).
    """
    rows, columns = weight.shape[-2:]
    scales = scales.float().repeat_interleave(block[0], -2).repeat_interleave(block[1], -1)
    return weight.float().mul_(scales[..., :rows, :columns])


class Widen:
    """Brings each weight together with its scales, in whatever order they are stored."""

    def __init__(self, block: tuple[int, int]) -> None:
        self._block = block
        self._waiting = dict[str, Tensor]()

    def __call__(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """One stored tensor to none, while its other half is awaited, or one of plain floats."""
        is_scale = name.endswith(_SCALE)
        if not is_scale and tensor.dtype.itemsize > 1:
            yield name, tensor
            return
        name = name.removesuffix(_SCALE)
        if name not in self._waiting:
            self._waiting[name] = tensor
            return
        other = self._waiting.pop(name)
        weight, scales = (other, tensor) if is_scale else (tensor, other)
        yield name, dequantise(weight, scales, self._block)
