"""Tensors in a block of memory."""

from __future__ import annotations

import torch

from baton_worker.device_keeper.bump_allocator import BumpAllocator


def test_the_same_requests_get_the_same_places() -> None:
    requests = (((3, 5), torch.bfloat16), ((0, 7), torch.float32), ((2,), torch.float32))
    counted = BumpAllocator()
    assert all(counted.empty(*request).device.type == "meta" for request in requests)
    memory = torch.zeros(counted.size, dtype=torch.uint8)
    for number in (1.0, 2.0):
        places = BumpAllocator(memory)
        found = [places.empty(*request) for request in requests]
        assert [tuple(t.shape) for t in found] == [(3, 5), (0, 7), (2,)]
        if number == 2.0:
            assert all(bool((t == 1.0).all()) for t in found), "what the first one left"
        for tensor in found:
            assert not tensor.numel() or tensor.data_ptr() % 256 == memory.data_ptr() % 256
            tensor.fill_(number)
    assert places.size == counted.size == 512
