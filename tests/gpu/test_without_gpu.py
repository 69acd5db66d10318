"""The tier's own code, tried at tiny sizes on any machine, so that a card's time is not spent on a
misspelt name."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch

from baton_ops.bench.serve import Bench
from baton_worker.bench.gpu import __main__ as bench
from baton_worker.bench.gpu.kernel_case import TINY
from baton_worker.bench.gpu.report import PARTS, SHAPES
from baton_worker.config import Config
from tests.chaos.__main__ import Chaos
from tests.fakes.kept_device import kept_device
from tests.fakes.triton_interpreter import interpreter
from tests.gpu import checks

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _no_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("the tier runs itself here")


def test_kernels_and_their_times(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    with interpreter(), pytest.MonkeyPatch.context() as patch:
        from baton_worker.kernels.triton import sampling

        patch.setattr(sampling, "sample", partial(sampling.sample, rows=4))
        checks.kernels_equal_their_references(CPU, torch.float32, TINY)
        assert bench.main(["--tiny", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("gpu-cpu-*.json")
    found = json.loads(path.read_text())
    assert found["ceilings"]["flops"] > 0 and len(found["kernels"]) == 50
    model = found["models"]["tiny"]
    assert [row["rows"] for row in model["decode"]] == [1, 2] and model["prefill"]
    assert set(model["start_seconds"]) == {"device", "weights", "cache", "warm-up and capture"}
    assert model["anatomy"][0]["kernels"]


def test_models(tmp_path: Path) -> None:
    engine = checks.says_what_transformers_says(tmp_path, "LlamaForCausalLM", CPU)
    eager = checks.build(tmp_path, "LlamaForCausalLM", CPU, max_replay_rows=0)
    checks.replays_are_what_eager_steps_are(engine, eager)
    checks.launching_ahead_changes_no_token(engine)
    checks.mixed_plans_compile_nothing(engine)
    assert checks.memory_of_busy_steps(engine, CPU) == 0
    checks.kv_passes_between_caches(CPU, direct=False)
    found = checks.rows_do_not_depend_on_each_other(engine, (1, 7))
    assert found == {1: True, 7: True}
    assert checks.a_decoded_token_has_the_bits_of_a_prompt(engine)
    assert isinstance(
        checks.products_do_not_depend_on_the_place_of_a_row(CPU, torch.float32, 8, 4), bool
    )


def test_quantised_models(tmp_path: Path) -> None:
    """One of them: on a CPU their kernels have tests of their own."""
    checks.says_what_the_numbers_say(tmp_path, CPU, checks.QUANTISED["int4"])


def test_memory_that_outlives_a_worker(tmp_path: Path, run_dir: Path) -> None:
    with kept_device(run_dir, tmp_path):
        checks.the_next_worker_attaches(tmp_path / "model", CPU, run_dir, checks.in_this_process)


def test_a_wait_of_the_host_is_an_error_and_its_own_warning_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    modes = list[str]()

    def set_mode(mode: str) -> None:
        modes.append(mode)
        warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with checks.no_waiting(torch.device("cuda")):
        assert modes == ["error"]
    assert modes == ["error", "default"]


def test_commands_of_the_evidence_are_understood(tmp_path: Path) -> None:
    """Every file is there, and every flag is one of its command."""
    evidence = runpy.run_path(str(ROOT / "ops/gpu/evidence.py"))
    seen = set[str]()
    for name, step in evidence["steps"](tmp_path).items():
        assert step.minutes < 10
        for executable, flag, module, *given in step.commands:
            assert (executable, flag) == (sys.executable, "-m"), name
            seen.add(module)
            if module == "pytest":
                files = [one for one in given if one.startswith("tests/")]
                assert files and all((ROOT / file).exists() for file in files)
            elif module == "baton_worker.bench.gpu":
                options = bench.parser().parse_args(given)
                assert set(options.parts) <= set(PARTS) and set(options.shapes) <= set(SHAPES)
            elif module == "tests.chaos":
                options = Chaos.load(given)
                assert options.real and options.model == str(tmp_path / "killed")
            else:
                assert (module, given[0]) == ("baton", "bench")
                options = Bench.load(given[1:])
                Config.load([one.replace("worker.", "") for one in options.serve_args.split()])
    assert seen == {"pytest", "baton_worker.bench.gpu", "tests.chaos", "baton"}
    evidence["_write_models"](tmp_path)
    for folder in ("served", "killed"):
        assert {"config.json", "tokenizer.json"} <= {p.name for p in (tmp_path / folder).iterdir()}


def test_evidence_has_steps_of_ten_minutes(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "ops/gpu/evidence.py")]
    said = subprocess.run(
        [*script, "plan"], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout
    for step in ("env", "kernels", "models", "bench", "system"):
        assert step in said
    refused = subprocess.run(
        [*script, "env", "--out", str(tmp_path)], capture_output=True, text=True, cwd=ROOT
    )
    assert refused.returncode == 2 and "no GPU" in refused.stdout
    assert json.loads((tmp_path / "env.json").read_text())["gpu"] is None
