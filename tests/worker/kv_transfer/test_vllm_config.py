from __future__ import annotations

import json
from typing import Any

import pytest

from baton.errors import SettingsError
from baton_worker.config import Config
from baton_worker.kv_transfer.vllm_config import parse, resolve


def load(*flags: str, **fields: Any) -> Config:
    return resolve(Config.load([*flags, "--kv-transfer-config", json.dumps(fields)]))


@pytest.mark.row("F15.02")
@pytest.mark.parametrize(
    ("kv_role", "role"),
    [("kv_producer", "prefill"), ("kv_consumer", "decode"), ("kv_both", "both")],
)
def test_a_role_is_a_role(kv_role: str, role: str) -> None:
    assert load(kv_connector="NixlConnector", kv_role=kv_role).role == role


@pytest.mark.row("F15.02")
@pytest.mark.parametrize(
    ("connector", "transports"),
    [
        ("NixlConnector", "nixl,tcp"),
        ("nixl", "nixl,tcp"),
        ("shm", "shm,tcp"),
        ("tcp", "tcp"),
    ],
)
def test_a_connector_is_a_transport(connector: str, transports: str) -> None:
    assert load(kv_connector=connector).kv_transports == transports


def test_several_connectors_are_an_order() -> None:
    inner = [{"kv_connector": "shm"}, {"kv_connector": "NixlConnector", "kv_role": "kv_both"}]
    found = load(kv_connector="MultiConnector", kv_connector_extra_config={"connectors": inner})
    assert found.kv_transports == "shm,nixl,tcp"


def test_an_address_is_where_pages_are_served() -> None:
    given = {"kv_connector": "tcp", "kv_ip": "10.0.0.1"}
    assert load(**given).bind_kv == "tcp://10.0.0.1:*"
    assert load(**given, kv_port=14579).bind_kv == "tcp://10.0.0.1:14579"
    assert load("--bind-kv", "tcp://*:9", **given).bind_kv == "tcp://*:9"


def test_kv_both_leaves_the_role_that_was_given() -> None:
    assert load("--role", "prefill", kv_connector="shm", kv_role="kv_both").role == "prefill"
    assert load("--role", "prefill", kv_connector="shm", kv_role="kv_producer").role == "prefill"
    with pytest.raises(SettingsError, match="--role prefill contradicts kv_role kv_consumer"):
        load("--role", "prefill", kv_connector="shm", kv_role="kv_consumer")


def test_without_it_nothing_changes() -> None:
    config = Config.load([])
    assert resolve(config) is config


@pytest.mark.row("F15.02")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"kv_connector": "NixlConector"}', "Did you mean 'NixlConnector'"),
        ('{"kv_connector": "shmem"}', "Did you mean 'shm'"),
        ('{"kv_connector": "P2pNcclConnector"}', "NCCL between workers.*no counterpart"),
        ('{"kv_connector": "LMCacheConnectorV1"}', "no counterpart"),
        ('{"kv_conector": "shm"}', "Did you mean 'kv_connector'"),
        ('{"kv_connector": "shm", "kv_role": "kv_all"}', "kv_all"),
        ('{"kv_connector": "shm", "kv_rank": 0}', "the scheduler pairs workers"),
        ('{"kv_connector": "shm", "kv_buffer_device": "cuda"}', "memory of the host"),
        ('{"kv_connector": "shm", "kv_load_failure_policy": "fail"}', "computed again"),
        ('{"kv_connector": "shm", "kv_port": "1"}', "Expected `int`"),
        ('{"kv_connector": "shm", "kv_connector_extra_config": {"x": 1}}', "leave it out"),
        ('{"kv_connector": "MultiConnector"}', "needs 'connectors'"),
        ('{"kv_role": "kv_both"}', "missing required field `kv_connector`"),
        ("NixlConnector", "not a JSON object"),
        ("[]", "not a JSON object"),
    ],
)
def test_what_means_nothing_here_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Config.load(["--kv-transfer-config", text])
    with pytest.raises(SettingsError, match=message):
        parse(text)
