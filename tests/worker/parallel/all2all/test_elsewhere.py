"""Ways that Baton knows by name only."""

from __future__ import annotations

import pytest

from baton.errors import SettingsError
from baton_worker.parallel.all2all import ALL2ALL
from baton_worker.parallel.communicator import Alone

HERE = ("allgather_reducescatter", "naive")


@pytest.mark.parametrize("name", [name for name in ALL2ALL.names() if name not in HERE])
def test_what_is_not_called_here_says_what_to_use(name: str) -> None:
    with pytest.raises(SettingsError) as error:
        ALL2ALL.load(name)(Alone())
    assert error.value.message.startswith(f"--all2all-backend {name}: this needs ")
    assert error.value.message.endswith("Use allgather_reducescatter or naive.")
