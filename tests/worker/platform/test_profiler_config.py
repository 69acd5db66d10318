"""--profiler-config"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from baton.errors import SettingsError
from baton_worker.config import Config
from baton_worker.platform.profiler_config import ProfilerConfig, parse


@pytest.mark.row("F20.06")
def test_flag_environment_and_file_agree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = json.dumps({"profiler": "torch", "torch_profiler_dir": "/t", "max_iterations": 4})
    file = tmp_path / "settings.yaml"
    file.write_text(f"worker:\n  profiler-config: '{text}'\n")
    found = {Config.load(["--profiler-config", text]).profiler_config}
    found.add(Config.load(["--config", str(file)]).profiler_config)
    monkeypatch.setenv("BATON_WORKER_PROFILER_CONFIG", text)
    found.add(Config.load([]).profiler_config)
    assert found == {text}
    assert parse(text) == ProfilerConfig(torch_profiler_dir="/t", max_iterations=4)
    assert parse("") is None


@pytest.mark.row("F20.06")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"profiler": "nsys"}', "nsys"),
        ('{"profiler": "torch"}', "torch_profiler_dir"),
        ('{"profiler": "torch", "torch_profiler_dir": "traces"}', "absolute path"),
        ('{"torch_profiler_dir": "/t", "ignore_frontend": true}', "ignore_frontend"),
        ('{"torch_profiler_dir": "/t", "max_iterations": -1}', "max_iterations"),
        ("[]", "object"),
    ],
)
def test_a_bad_value_is_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why) as caught:
        Config.load(["--profiler-config", text])
    assert "profiler-config" in caught.value.message
