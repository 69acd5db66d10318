"""Requests about weights: what each backend takes."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from baton.protocol import (
    BroadcastTransfer,
    FileTransfer,
    InitWeightTransfer,
    SharedMemoryTransfer,
    TensorInfo,
)
from baton_gateway.schemas.operator.weight_updates import (
    BroadcastUpdate,
    FileUpdate,
    FinishWeightUpdateRequest,
    GroupInit,
    InitWeightTransferRequest,
    SharedMemoryUpdate,
    UpdateWeightsRequest,
)

MEMORY = {"name": "psm_1", "names": ["a"], "dtype_names": ["bfloat16"], "shapes": [[2, 3]]}


def test_updates_become_messages() -> None:
    digits = "aB" * 32
    update = FileUpdate.model_validate({"path": "/new", "sha256": {"model.safetensors": digits}})
    assert update.transfer() == FileTransfer("/new", {"model.safetensors": digits})
    memory = SharedMemoryUpdate.model_validate(MEMORY | {"sha256": digits})
    wanted = SharedMemoryTransfer("psm_1", (TensorInfo("a", "bfloat16", (2, 3)),), digits.lower())
    assert memory.transfer() == wanted
    tensors = {name: column for name, column in MEMORY.items() if name != "name"}
    broadcast = BroadcastUpdate.model_validate(tensors | {"sha256": digits})
    assert broadcast.transfer() == BroadcastTransfer(wanted.tensors, wanted.sha256)
    init = GroupInit.model_validate(
        {"master_address": "trainer", "master_port": 1, "rank_offset": 2, "world_size": 4}
    )
    assert init.action() == InitWeightTransfer("trainer", 1, 2, 4)
    assert FinishWeightUpdateRequest().mode == "keep"
    for kind, field in (
        (InitWeightTransferRequest, "init_info"),
        (UpdateWeightsRequest, "update_info"),
    ):
        assert kind.model_validate({field: {}})
        with pytest.raises(ValidationError):
            kind.model_validate({})


@pytest.mark.parametrize(
    "change",
    [
        {"shapes": []},
        {"names": ["a", "a"], "dtype_names": ["x", "x"], "shapes": [[1], [1]]},
        {"shapes": [[0]]},
        {"sha256": "short"},
    ],
)
def test_columns_fit_together(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SharedMemoryUpdate.model_validate(MEMORY | change)
