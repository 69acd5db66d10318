from __future__ import annotations

import pytest

from baton.errors import SettingsError
from baton_worker.config import Config
from baton_worker.kv_transfer.registry import TRANSPORTS, split


def test_the_best_one_is_the_first_by_default() -> None:
    assert split(Config().kv_transports) == ("cuda_ipc", "nixl", "shm", "tcp")
    assert TRANSPORTS.names() == ("cuda_ipc", "nixl_gpu", "nixl", "shm", "tcp")


@pytest.mark.parametrize("name", TRANSPORTS.names())
def test_each_is_there(name: str) -> None:
    assert TRANSPORTS.load(name).__name__.lower() == name.replace("_", "")


def test_the_order_is_what_was_given() -> None:
    assert Config.load(["--kv-transports", "tcp, shm"]).kv_transports == "tcp,shm"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nixel,tcp", "Did you mean 'nixl'"),
        ("tcp,tcp", "twice"),
        ("", "Unknown transports ''"),
        ("tcp,", "Unknown transports ''"),
    ],
)
def test_what_is_not_known_is_refused(value: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Config.load(["--kv-transports", value])
