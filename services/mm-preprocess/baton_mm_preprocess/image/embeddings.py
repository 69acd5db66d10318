"""Image embeddings computed by a client, from a tensor file.

Supported are safetensors files with one tensor (https://github.com/huggingface/safetensors) and
numpy arrays. Files of `torch.save` need unpickling, and are refused.
"""

from __future__ import annotations

import io
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from baton.errors import InvalidRequest

_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""Safetensors dtype -> numpy dtype."""
_MOST_HEADER = 4096
_NUMPY, _ZIP, _PICKLE = b"\x93NUMPY", b"PK", b"\x80"


def read_embeddings(data: bytes, width: int) -> npt.NDArray[np.float32]:
    """The embeddings of one image, [n, width].

    Args:
        data: a file with [n, width] or [1, n, width] numbers of 16 or 32 bits.
        width: the hidden size of the model.

    Raises:
        InvalidRequest: the file is invalid, or a number in it is not finite.
    """
    array = _numpy(data) if data.startswith(_NUMPY) else _safetensors(data)
    shape = list(array.shape)
    if array.ndim == 3 and shape[0] == 1:
        array = array[0]
    if array.ndim != 2 or not len(array) or array.shape[1] != width:
        raise _invalid(f"they have the shape {shape}, and this model takes [n, {width}]")
    if not np.isfinite(array).all():
        raise _invalid("a number in them is not finite")
    return array


def _numpy(data: bytes) -> npt.NDArray[np.float32]:
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise _invalid("the file of numpy cannot be read") from error
    if array.dtype not in (np.float32, np.float16):
        raise _invalid(f"their dtype is {array.dtype}, not float32 or float16")
    return np.ascontiguousarray(array, np.float32)


def _safetensors(data: bytes) -> npt.NDArray[np.float32]:
    if data[8:9] != b"{" and data.startswith((_ZIP, _PICKLE)):
        raise _invalid("torch.save writes code, which is not run; send safetensors or a .npy file")
    start = 8 + int.from_bytes(data[:8], "little")
    try:
        header: Any = msgspec.json.decode(data[8 : min(start, 8 + _MOST_HEADER)])
        [tensor] = [value for name, value in header.items() if name != "__metadata__"]
        dtype, shape, (first, end) = tensor["dtype"], tensor["shape"], tensor["data_offsets"]
        kind = _DTYPES[dtype]
        numbers = np.frombuffer(data[start + first : start + end], kind).reshape(shape)
    except (msgspec.DecodeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _invalid(
            "they are no safetensors file with one tensor of F32, F16 or BF16, and no .npy file"
        ) from error
    if dtype == "BF16":
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(numbers, np.float32)


def _invalid(why: str) -> InvalidRequest:
    return InvalidRequest(
        f"The embeddings of an image cannot be used: {why}.", code="invalid_image_embeds"
    )
