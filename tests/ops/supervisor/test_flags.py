"""Plain flags, their contradictions, and the file below them."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.errors import SettingsError
from baton_ops.supervisor.options import serve_config, variables


def given(*argv: str) -> dict[str, str]:
    return variables(serve_config().load(argv))


def test_a_plain_flag_may_not_contradict_the_one_of_the_service() -> None:
    with pytest.raises(SettingsError, match=r"--worker\.max-num-seqs 8 contradicts"):
        given("--worker.max-num-seqs", "8", "--max-num-seqs", "9")


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--block-size", r"^--block-size: .*\(got '1k'\)$"),
        ("--bind", "ambiguous: --mm-preprocess.bind"),
        ("--max-num-seq", "Did you mean --max-num"),
    ],
)
def test_a_wrong_flag_is_refused_by_its_name(flag: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        given(flag, "1k")


def test_flag_beats_environment_beats_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "baton.yaml"
    file.write_text("block-size: 32\nport: 1\nworkers: 2\nworker: {max_num_seqs: 8}\n")
    monkeypatch.setenv("BATON_WORKER_MAX_NUM_SEQS", "9")
    found = given("--config", str(file), "--port", "2")
    assert found == {"BATON_WORKER_BLOCK_SIZE": "32", "BATON_GATEWAY_PORT": "2"}


def test_an_unknown_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "baton.yaml"
    file.write_text("worker: {max_num_seq: 8}\n")
    with pytest.raises(SettingsError, match=r"Did you mean worker\.max_num_seqs"):
        given("--config", str(file))
