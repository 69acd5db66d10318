from __future__ import annotations

import pytest

from baton.protocol import Offer
from baton_worker.kv_transfer.transport import Size, choose

NEAR, FAR = Offer("shm", "host"), Offer("tcp", "network")
FAST_NEAR, FAST_FAR = Offer("nixl", "host"), Offer("nixl", "network")


@pytest.mark.parametrize(
    ("mine", "theirs", "near", "far"),
    [
        ([FAST_NEAR, NEAR, FAR], [FAST_NEAR, NEAR, FAR], "nixl", "tcp"),
        ([FAST_FAR, NEAR, FAR], [FAST_FAR, NEAR, FAR], "nixl", "nixl"),
        ([FAST_NEAR, FAR], [FAST_FAR, FAR], "nixl", "tcp"),
        ([FAST_FAR, FAR], [FAST_NEAR, FAR], "nixl", "tcp"),
        ([NEAR, FAR], [FAST_FAR, NEAR, FAR], "shm", "tcp"),
        ([NEAR, FAR], [FAR, NEAR], "tcp", "tcp"),
        ([NEAR], [NEAR, FAR], "shm", ""),
        ([NEAR], [FAR], "", ""),
        ([], [FAR], "", ""),
        ([FAR], [], "", ""),
    ],
)
def test_a_pair_uses_the_first_that_both_have_and_that_reaches(
    mine: list[Offer], theirs: list[Offer], near: str, far: str
) -> None:
    own = {offer.name: offer for offer in mine}
    assert choose(own, tuple(theirs), near=True) == near
    assert choose(own, tuple(theirs), near=False) == far


def test_a_lane_is_as_large_as_its_places() -> None:
    assert Size(8, 64).total == 512
