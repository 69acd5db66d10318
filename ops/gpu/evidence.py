"""Runs the GPU tests and benchmarks in steps of less than ten minutes each, half an hour in total.

    python ops/gpu/evidence.py plan                  the steps and their time limits
    python ops/gpu/evidence.py env --out evidence    one step; `all` runs them in order

Each step prints its commands, writes its output and a JSON to `--out`, and needs no network: this
repository is installed with the extras `dev` and `cuda`. Commands run in its root.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_CHAOS = ("--seconds", "60", "--streams", "8", "--every", "20", "--kinds", "kill")
_NEEDED = ("torch", "triton", "transformers", "httpx", "pytest", "xdist")
_VOCABULARY = 280
"""Vocabulary of the prompts for the model under `kill -9`."""


class Step(NamedTuple):
    """One step: commands that run one after the other within its time limit."""

    minutes: int
    """Time limit of all commands together; a running command is then stopped."""
    why: str
    commands: tuple[tuple[str, ...], ...]


def _python(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, *arguments)


def _tests(rows: Path, *names: str, processes: int = 8) -> tuple[str, ...]:
    """Pytest command; its rows are written to the file `rows` for `baton matrix --card-rows`."""
    flags = ("-q", "-rs", "-p", "no:cacheprovider", "-n", str(processes))
    return _python("-m", "pytest", *flags, "--card-rows", str(rows), *names)


def _bench(*arguments: str) -> tuple[str, ...]:
    return _python("-m", "baton_worker.bench.gpu", *arguments)


def steps(out: Path) -> dict[str, Step]:
    """All steps, in order."""
    where = ("--out", str(out))
    return {
        "env": Step(1, "what this machine has", ()),
        "kernels": Step(
            9,
            "every kernel against float64, and against the twin that the CPU tests use",
            (
                _tests(out / "rows-0.json", "tests/gpu/test_kernels.py"),
                _tests(
                    *(out / "rows-1.json", "tests/worker/kernels/triton"),
                    *("--deselect", "tests/worker/kernels/triton/test_compiled.py"),
                ),
            ),
        ),
        "models": Step(
            8,
            "tiny models against transformers, captures, replays, steps that wait for nothing",
            (
                _tests(out / "rows-2.json", "tests/gpu/test_models.py"),
                _tests(
                    *(out / "rows-3.json", "tests/worker/graphs/test_gpu.py"),
                    "tests/worker/sampling/test_gpu.py",
                ),
            ),
        ),
        "memory": Step(
            6,
            "the largest step beside all pages, KV between caches and processes, what outlives a "
            "killed worker, ranks on two GPUs",
            # One after the other, since an engine allocates all free memory.
            (_tests(out / "rows-4.json", "tests/gpu/test_memory.py", processes=1),),
        ),
        "bench": Step(9, "ceilings and kernels", (_bench(*where, "--parts", "kernels"),)),
        "dense": Step(
            9,
            "Llama 3 8B with random weights: start, decode, prompts, what a step consists of",
            (_bench("--out", str(out / "dense"), "--parts", "models", "--shapes", "llama-3-8b"),),
        ),
        "experts": Step(
            9,
            "Qwen3 30B-A3B with random weights",
            (_bench("--out", str(out / "moe"), "--parts", "models", "--shapes", "qwen3-30b-a3b"),),
        ),
        "system": Step(
            9,
            "the whole system on a GPU: streams over HTTP, then kill -9 under load",
            (
                _python(
                    *("-m", "baton", "bench", str(out / "served"), "--shapes", "fixed"),
                    *("--concurrency", "1,16,64", "--loads", "0.5", "--out", str(out / "http")),
                    *("--serve-args", "--worker.load-format dummy --worker.device cuda"),
                ),
                # Real workers, in float32 and with --exact, whose tokens are compared. CUDA cannot
                # be forked.
                _python(
                    *("-m", "tests.chaos", "--real", "--no-fork-workers"),
                    *("--model", str(out / "killed"), "--vocab", str(_VOCABULARY), *_CHAOS),
                ),
            ),
        ),
    }


def environment() -> dict[str, Any]:
    """Describe this machine."""
    facts: dict[str, Any] = {"python": platform.python_version(), "gpu": None}
    facts["compiler"] = shutil.which("gcc") or shutil.which("clang")
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    facts["python_headers"] = headers.is_file()
    for name in ("torch", "triton", "flashinfer", "flash_attn", "flash_attn_3", "transformers"):
        spec = importlib.util.find_spec(name)
        facts[name] = None if spec is None else _version(name)
    if facts["torch"] is not None:
        import torch

        facts["cuda"] = torch.version.cuda
        if torch.cuda.is_available():
            free, total = torch.cuda.mem_get_info()
            facts["gpu"] = torch.cuda.get_device_name()
            facts["capability"] = torch.cuda.get_device_capability()
            facts["memory"] = {"free": free, "total": total}
    facts["missing"] = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if (query := shutil.which("nvidia-smi")) is not None:
        command = [query, "--query-gpu=driver_version,name", "--format=csv,noheader"]
        facts["driver"] = subprocess.run(
            command, capture_output=True, text=True, check=False
        ).stdout.strip()
    return facts


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name.replace("_", "-"))
    except PackageNotFoundError:
        return "installed"


def run(name: str, step: Step, out: Path) -> bool:
    """Run a step within its time limit; returns whether all commands succeeded."""
    out.mkdir(parents=True, exist_ok=True)
    if name == "env":
        facts = environment()
        (out / "env.json").write_text(json.dumps(facts, indent=1) + "\n")
        print(json.dumps(facts, indent=1))
        if facts["gpu"] is None:
            print("There is no GPU that PyTorch can use.")
        if facts["missing"]:
            print("Install what is missing: pip install -e '.[dev,cuda]'")
        return facts["gpu"] is not None and not facts["missing"]
    if name == "system":
        _write_models(out)
    end, results = time.monotonic() + 60 * step.minutes, []
    for number, command in enumerate(step.commands):
        print(f"[{name}] {' '.join(command)}", flush=True)
        begin = time.monotonic()
        code = _limited(command, out / f"{name}-{number}.log", end - begin)
        results.append({"command": command, "code": code, "seconds": time.monotonic() - begin})
        print(f"[{name}] exit {code} after {results[-1]['seconds']:.0f} s", flush=True)
    (out / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    return all(one["code"] == 0 for one in results)


def _limited(command: tuple[str, ...], log: Path, seconds: float) -> int:
    """Exit code of a command; 124 after its time limit."""
    with log.open("w") as file:
        try:
            ended = subprocess.run(
                command, cwd=ROOT, stdout=file, stderr=file, timeout=max(1.0, seconds), check=False
            )
        except subprocess.TimeoutExpired:
            return 124
    print("\n".join(log.read_text().splitlines()[-12:]), flush=True)
    return ended.returncode


def _write_models(out: Path) -> None:
    """Create a large model with random weights, and a tiny one for workers that are killed."""
    sys.path.insert(0, str(ROOT))
    from baton_worker.bench.gpu.model_shapes import SHAPES, write
    from tests.support.tiny_models import save_checkpoint, save_tokenizer

    save_tokenizer(write("llama-3-8b", out / "served"), SHAPES["llama-3-8b"]["vocab_size"])
    save_checkpoint(out / "killed", "LlamaForCausalLM")
    save_tokenizer(out / "killed")


def main(arguments: list[str]) -> int:
    """Run the selected steps; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [*steps(Path())]
    parser.add_argument("step", choices=["plan", "all", *names])
    parser.add_argument("--out", type=Path, default=Path("evidence"))
    options = parser.parse_args(arguments)
    all_steps = steps(options.out.resolve())
    if options.step == "plan":
        for name, step in all_steps.items():
            print(f"{name:8} {step.minutes:2} min  {step.why}")
        return 0
    failed = list[str]()
    for name in names if options.step == "all" else [options.step]:
        if not run(name, all_steps[name], options.out.resolve()):
            failed.append(name)
            if name == "env":
                return 2
    if failed:
        print(f"not everything succeeded: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
