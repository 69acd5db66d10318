"""POST /start_weight_update, /update_weights and /finish_weight_update, GET /weight_version"""

from __future__ import annotations

import pytest

from baton.errors import SettingsError
from baton.protocol import (
    BroadcastTransfer,
    FileTransfer,
    FinishWeightUpdate,
    InitWeightTransfer,
    SharedMemoryTransfer,
    StartWeightUpdate,
    TensorInfo,
    UpdateWeights,
)
from baton_gateway.config import Config
from tests.fakes.gateway_app import Site, error_of, site

pytestmark = pytest.mark.row("F14.14", "F19.09")
STEPS = ("/init_weight_transfer_engine", "/start_weight_update", "/update_weights")
FILES, MEMORY = '{"backend": "files"}', '{"backend":"shared_memory"}'


def test_they_are_routes_only_where_the_operator_says_so(shared_site: Site) -> None:
    for path in (*STEPS, "/finish_weight_update"):
        refused = shared_site.post(path, {})
        assert refused.status_code == 404
        assert "--weight-transfer-config" in error_of(refused)["message"]
    for path in ("/weight_version", "/weight_info"):
        assert shared_site.get(path).json() == {"weight_version": "default"}


def test_an_update_from_files() -> None:
    with site(weight_transfer_config=FILES) as here:
        assert here.post(STEPS[0], {"init_info": {}}).status_code == 200
        assert here.post(STEPS[1]).json() == {"message": "Weight update started"}
        sent = here.post(STEPS[2], {"update_info": {"path": "/new"}})
        assert sent.json() == {"message": "Weights updated"}
        ended = here.post("/finish_weight_update", {"weight_version": "step-7", "mode": "wait"})
        assert ended.json() == {"message": "Weight update finished"}
        assert here.get("/weight_version").json() == {"weight_version": "step-7"}
        assert here.post("/finish_weight_update").status_code == 200
        scheduler = here.engine.scheduler
        assert scheduler.actions == [
            StartWeightUpdate(),
            UpdateWeights(FileTransfer("/new")),
            FinishWeightUpdate("step-7", "wait"),
            FinishWeightUpdate(""),
        ]
        for body, param in (
            ({}, "update_info"),
            ({"update_info": {}}, "path"),
            ({"update_info": {"path": "/new", "sha256": {"f": "1"}}}, "sha256"),
        ):
            refused = here.post(STEPS[2], body)
            assert refused.status_code == 400 and param in str(error_of(refused))
        refused = here.post("/finish_weight_update", {"mode": "never"})
        assert refused.status_code == 400 and error_of(refused)["param"] == "mode"
        assert here.post(f"{STEPS[1]}?model=nobody").status_code == 404
        scheduler.refusal = "There is no room."
        assert error_of(here.post("/finish_weight_update"))["message"] == "There is no room."


def test_an_update_from_shared_memory() -> None:
    info = {"name": "psm_1", "names": ["a"], "dtype_names": ["bfloat16"], "shapes": [[2, 3]]}
    with site(weight_transfer_config=MEMORY) as here:
        assert here.post(STEPS[2], {"update_info": info}).status_code == 200
        wanted = SharedMemoryTransfer("psm_1", (TensorInfo("a", "bfloat16", (2, 3)),))
        assert here.engine.scheduler.actions == [UpdateWeights(wanted)]


def test_an_update_from_a_trainer_s_broadcast() -> None:
    init = {"master_address": "10.0.0.1", "master_port": 29500, "world_size": 3}
    info = {"names": ["a"], "dtype_names": ["bfloat16"], "shapes": [[2, 3]]}
    with site(weight_transfer_config='{"backend": "gloo"}') as here:
        assert here.post(STEPS[0], {"init_info": init}).status_code == 200
        assert here.post(STEPS[2], {"update_info": info}).status_code == 200
        assert here.engine.scheduler.actions == [
            InitWeightTransfer("10.0.0.1", 29500, 1, 3),
            UpdateWeights(BroadcastTransfer((TensorInfo("a", "bfloat16", (2, 3)),))),
        ]
        for change in ({"world_size": 1}, {"rank_offset": 0}, {"master_port": 0}, {"x": 1}):
            refused = here.post(STEPS[0], {"init_info": init | change})
            assert refused.status_code == 400 and next(iter(change)) in str(error_of(refused))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"backend": "nccl"}', "not served here"),
        ('{"backend": "carrier pigeon"}', "files or shared_memory or gloo"),
        ("{}", "wants a backend"),
        ('{"backend": "files", "x": "y"}', "unknown field 'x'"),
        ("files", "not a JSON object"),
    ],
)
def test_other_backends_are_refused_at_start(text: str, why: str) -> None:
    with pytest.raises((SettingsError, ValueError), match=why):
        Config(weight_transfer_config=text)
