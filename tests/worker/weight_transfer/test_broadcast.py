"""Groups of a trainer and workers: several ranks, one that ends, and one that never comes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Timer

import pytest
import torch

from baton.errors import ModelError
from baton_ops.bench.server import free_port
from baton_worker.weight_transfer.broadcast import BroadcastGroup, Membership

pytestmark = pytest.mark.row("F14.14")


def test_all_workers_receive_what_rank_0_sends_until_it_ends() -> None:
    port, members = free_port(), [Membership(), Membership()]
    weights = [torch.arange(6.0).view(2, 3), torch.arange(5).to(torch.bfloat16)]
    with ThreadPoolExecutor(3) as pool:
        led = pool.submit(BroadcastGroup, "127.0.0.1", port, 0, 3)
        joined = [
            pool.submit(member.join, "127.0.0.1", port, rank, 3)
            for rank, member in enumerate(members, 1)
        ]
        assert all(one.result() is None for one in joined)
        group = led.result()
        sent = pool.submit(group.send, weights)
        for wanted in weights:
            got = [pool.submit(m.receive, tuple(wanted.shape), wanted.dtype) for m in members]
            assert all(torch.equal(one.result(), wanted) for one in got)
        sent.result()
        del group, led, sent
        with pytest.raises(ModelError, match="The group with the trainer has failed"):
            members[0].receive((1,), torch.float32)
        with pytest.raises(ModelError, match="in no group"):
            members[0].receive((1,), torch.float32)


def test_a_worker_that_ends_waits_for_no_trainer() -> None:
    member = Membership(timedelta(seconds=1))
    timer = Timer(0.2, member.close)
    timer.start()
    with pytest.raises(ModelError, match="ends"):
        member.join("127.0.0.1", free_port(), 1, 2)
    timer.join()
    with pytest.raises(RuntimeError):
        BroadcastGroup("127.0.0.1", free_port(), 1, 2, timedelta(seconds=0.2))
