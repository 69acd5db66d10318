"""Groups of settings have the same values from flags, from the environment and from a file, and a
bad value is refused by the name of its flag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.errors import SettingsError
from baton.settings import config_classes

CONNECTOR = '{"kv_connector": "shm", "kv_role": "kv_producer"}'
GROUPS: list[tuple[str, str, dict[str, str], dict[str, str]]] = [
    (
        "F20.01",
        "worker",
        {"tensor-parallel-size": "4", "decode-context-parallel-size": "2", "threads": "8"}
        | {"enable-expert-parallel": "true", "all2all-backend": "naive"},
        {"tensor-parallel-size": "0", "all2all-backend": "mpi", "data-parallel-size": "two"},
    ),
    (
        "F20.04",
        "worker",
        {"cuda-graphs": "false", "max-cudagraph-capture-size": "64"},
        {"max-cudagraph-capture-size": "0"},
    ),
    (
        "F20.05",
        "worker",
        {"kv-transports": "shm,tcp", "kv-transfer-config": CONNECTOR},
        {"kv-transports": "rdma", "kv-transfer-config": '{"kv_connector": "mooncake"}'},
    ),
    (
        "F20.07",
        "gateway",
        {"otlp-endpoint": "http://collector:4318", "metrics": "false", "vllm-metrics": "true"}
        | {"log-level": "debug", "explained-requests": "5"},
        {"log-level": "loud", "explained-requests": "-1"},
    ),
]


def field(flag: str) -> str:
    return flag.replace("-", "_")


def flags(flag: str, value: str) -> list[str]:
    if value in ("true", "false"):
        return [f"--{'no-' * (value == 'false')}{flag}"]
    return [f"--{flag}", value]


@pytest.mark.parametrize(
    ("service", "good", "bad"),
    [pytest.param(*case, id=row, marks=pytest.mark.row(row)) for row, *case in GROUPS],
)
def test_flags_environment_and_file_agree(
    service: str,
    good: dict[str, str],
    bad: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load, names = config_classes()[service].load, {field(flag) for flag in good}

    def values(arguments: list[str]) -> dict[str, Any]:
        return load(arguments).model_dump(include=names)

    given = values([part for named in good.items() for part in flags(*named)])
    assert all(given[name] != value for name, value in values([]).items()), "none is the default"
    file = tmp_path / "baton.yaml"
    file.write_text(yaml.safe_dump({service: {field(flag): v for flag, v in good.items()}}))
    assert values(["--config", str(file)]) == given
    for flag, value in bad.items():
        with pytest.raises(SettingsError, match=flag):
            load([f"--{flag}", value])
    for flag, value in good.items():
        monkeypatch.setenv(f"BATON_{service}_{field(flag)}".upper(), value)
    assert values([]) == given
