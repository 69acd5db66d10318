"""Some rows of a matrix in a GGUF file are those rows of all of it, in every order."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch

from baton.checkpoint.gguf_header import TensorEntry
from baton.errors import ModelError
from baton_worker.checkpoint.gguf.blocks import open_blocks
from baton_worker.checkpoint.gguf.data import GgufData, unpermuted, untiled

Type = gguf.GGMLQuantizationType
SHAPE, BEFORE = (64, 128), 4096


def stored(path: Path, kind: Type) -> tuple[TensorEntry, npt.NDArray[np.float32]]:
    """A file with one matrix, and its values."""
    values = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    data = gguf.quants.quantize(values, kind)
    path.write_bytes(bytes(BEFORE) + data.tobytes())
    return TensorEntry("x", SHAPE, int(kind), BEFORE), gguf.quants.dequantize(data, kind)


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16, Type.Q5_0, Type.Q8_0])
@pytest.mark.parametrize("heads", [None, 4])
def test_rows_as_floats(tmp_path: Path, kind: Type, heads: int | None) -> None:
    tensor, values = stored(tmp_path / "x.gguf", kind)
    order = None if heads is None else unpermuted(SHAPE[0], heads)
    whole = torch.from_numpy(values.astype(np.float32) if order is None else values[order])
    found = GgufData(tmp_path / "x.gguf").rows(tensor, order)
    assert found.shape == SHAPE and torch.equal(found.dequantise(), whole.float())
    assert torch.equal(found[7:23], whole[7:23].float())


@pytest.mark.parametrize("heads", [None, 4])
def test_rows_as_blocks(tmp_path: Path, heads: int | None) -> None:
    tensor, values = stored(tmp_path / "x.gguf", Type.Q8_0)
    data = gguf.quants.quantize(values, Type.Q8_0)
    order = None if heads is None else unpermuted(SHAPE[0], heads)
    whole = open_blocks(Type.Q8_0, data if order is None else data[order])
    found = GgufData(tmp_path / "x.gguf").blocks(tensor, order)
    assert found.shape == SHAPE and found.kind == "int8"
    assert torch.equal(found[7:23].codes, whole[7:23].codes)
    assert torch.equal(found.dequantise(), whole.dequantise())


def test_orders_of_rows() -> None:
    assert unpermuted(8, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert untiled(12, (3, 2)).tolist() == [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]


def test_parts_of_a_tensor_follow_each_other(tmp_path: Path) -> None:
    tensor, values = stored(tmp_path / "x.gguf", Type.Q8_0)
    data = GgufData(tmp_path / "x.gguf")
    assert torch.equal(data.rows(data.part(tensor, 5, 9), None)[:], torch.tensor(values[5:14]))


def test_what_is_not_there_or_not_known_is_refused(tmp_path: Path) -> None:
    tensor, _ = stored(tmp_path / "x.gguf", Type.F32)
    data = GgufData(tmp_path / "x.gguf")
    with pytest.raises(ModelError, match="ends before tensor x"):
        data.rows(tensor._replace(offset=BEFORE + 4), None)
    with pytest.raises(ModelError, match="number 999"):
        data.floats(tensor._replace(kind=999))
