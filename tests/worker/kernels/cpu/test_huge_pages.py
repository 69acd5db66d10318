"""Memory of packed weights: what is put there is kept, apart from everything else there."""

from __future__ import annotations

import gc
import mmap
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_worker.kernels.cpu import huge_pages
from baton_worker.kernels.cpu.huge_pages import HugePageArena

SIZES = st.lists(
    st.integers(huge_pages._LEAST // 2, 3 * huge_pages._LEAST), min_size=1, max_size=12
)


def settle(memory: HugePageArena, tensor: torch.Tensor) -> torch.Tensor:
    return memory.empty(tensor.shape, tensor.dtype).copy_(tensor)


@given(sizes=SIZES)
@settings(max_examples=20, deadline=None)
def test_no_tensor_overwrites_another(sizes: list[int]) -> None:
    memory = HugePageArena(chunk=4 * huge_pages._LEAST)
    given_ = [torch.full((size,), number, dtype=torch.uint8) for number, size in enumerate(sizes)]
    kept = [settle(memory, tensor) for tensor in given_]
    assert all(torch.equal(*pair) for pair in zip(given_, kept, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize(
    "chunk", [huge_pages._LEAST, 64 * huge_pages._LEAST], ids=["own", "shared"]
)
def test_a_copy_has_the_shape_dtype_and_alignment(dtype: torch.dtype, chunk: int) -> None:
    memory = HugePageArena(chunk)
    settle(memory, torch.zeros(huge_pages._LEAST + 1, dtype=torch.uint8))
    tensor = torch.arange(3 * huge_pages._LEAST).view(3, -1, 4).to(dtype)
    kept = settle(memory, tensor)
    assert torch.equal(kept, tensor) and kept.dtype is dtype and kept.is_contiguous()
    assert kept.data_ptr() != tensor.data_ptr() and kept.data_ptr() % huge_pages._ALIGNMENT == 0


def test_a_small_tensor_takes_no_chunk() -> None:
    memory = HugePageArena()
    assert memory.empty((huge_pages._LEAST - 1,), torch.uint8).nbytes == huge_pages._LEAST - 1
    assert not memory._open


def test_what_is_left_of_a_chunk_is_used() -> None:
    memory = HugePageArena(chunk=4 * huge_pages._LEAST)
    for parts in (3, 2, 1, 2):
        memory.empty((parts * huge_pages._LEAST,), torch.uint8)
    assert [chunk.used for chunk in memory._open] == [4 * huge_pages._LEAST] * 2


def test_memory_outlives_its_arena_and_goes_with_its_last_tensor() -> None:
    memory = HugePageArena()
    kept = settle(memory, torch.ones(huge_pages._LEAST, dtype=torch.uint8))
    held = weakref.ref(memory._open[0].memory)
    del memory
    gc.collect()
    assert int(kept.sum()) == huge_pages._LEAST and held() is not None
    del kept
    gc.collect()
    assert held() is None


def test_a_kernel_without_huge_pages_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 12345)
    tensor = torch.arange(huge_pages._LEAST)
    assert torch.equal(settle(HugePageArena(), tensor), tensor)


@pytest.mark.parametrize("shape", [(3, huge_pages._LEAST), (2, 5), (4, 0)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8])
def test_zeros_are_there_and_nobody_elses(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    made = [huge_pages.zeros(shape, dtype=dtype, device=torch.device("cpu")) for _ in range(2)]
    assert all(x.shape == shape and x.dtype is dtype and not x.any() for x in made)
    made[0].fill_(1)
    assert made[0].all() and not made[1].any()


def test_memory_that_is_given_back_is_zeros_again() -> None:
    for size in (1 << 10, 3 << 20):
        memory = huge_pages.zeros((size,), dtype=torch.uint8, device=torch.device("cpu")).fill_(7)
        huge_pages.give_back(memory)
        assert memory.count_nonzero() == 0
        assert memory.fill_(1).sum() == size


def test_zeros_of_another_device_are_left_to_it() -> None:
    made = huge_pages.zeros((3, huge_pages._LEAST), dtype=torch.uint8, device=torch.device("meta"))
    assert made.device.type == "meta"


def test_memory_of_zeros_is_taken_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[mmap.mmap] = []
    monkeypatch.setattr(huge_pages._POPULATOR, "add", taken.append)
    made = huge_pages.zeros((3, huge_pages._LEAST), dtype=torch.uint8, device=torch.device("cpu"))
    [memory] = taken
    made.view(-1)[5] = 7
    assert memory[5] == 7 and len(memory) == made.nbytes


def test_full_chunks_are_told_once_and_only_while_somebody_has_them() -> None:
    memory, asked = HugePageArena(chunk=4 * huge_pages._LEAST), list[int]()
    memory.on_written(lambda: asked.append(len(memory._full)))
    kept = [memory.empty((3 * huge_pages._LEAST,), torch.uint8) for _ in range(6)]
    large = memory.empty((5 * huge_pages._LEAST,), torch.uint8)
    assert asked == [0, 0, 0, 0, 0, 1, 2], "before each new tensor"
    del kept[1]
    gc.collect()
    blocks = list(memory.full_blocks())
    assert [block.address for block in blocks] == [kept[0].data_ptr(), large.data_ptr()]
    assert [block.size // huge_pages._LEAST for block in blocks] == [3, 5]
    assert all(block.address % huge_pages.HUGE == 0 for block in blocks)
    assert list(memory.full_blocks()) == []
    memory.close_all()
    assert len(list(memory.full_blocks())) == huge_pages._OPEN
    assert not memory._open
