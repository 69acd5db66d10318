"""What the tier asserts, for any device and any sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest
import torch
from torch import Tensor

from baton.protocol import Grant, Pull, Sampling
from baton.protocol.token_columns import pack
from baton_worker.bench.gpu.kernel_case import Sizes
from baton_worker.bench.gpu.kernel_cases import cases
from baton_worker.bench.gpu.kernel_times import distance, poison
from baton_worker.config import Config
from baton_worker.device_keeper.kept_memory import KeeperClient
from baton_worker.engine.engine import Engine
from baton_worker.kv_transfer.cuda_ipc import CudaMemory
from baton_worker.kv_transfer.page_content import PageContent
from baton_worker.platform.device_memory import device_memory
from tests.fakes.page_caches import LENGTH, TOKEN, cache, filled
from tests.fakes.scheduler_planner import Planner
from tests.fakes.scheduler_planner import Sequence as Row
from tests.support import quantized_checkpoints, tiny_models
from tests.support.served_system import until
from tests.support.worker.mixed_plans import serve

PAGES, PLANS = 256, 200
KINDS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {},
    "Qwen3ForCausalLM": {},
    "Gemma3ForCausalLM": {},
    "GptOssForCausalLM": {},
    "MixtralForCausalLM": {},
    "Qwen3MoeForCausalLM": {},
    "DeepseekV3ForCausalLM": {},
    "MambaForCausalLM": {},
    "FalconH1ForCausalLM": {},
    "Qwen3NextForCausalLM": {},
    "Lfm2ForCausalLM": {},
}
"""Tiny models of each kind: norms of heads, windows, sinks, experts, latents; scans, states beside
attention, delta nets, convolutions."""
PROMPT = [3, 7, 9, 11, 2, 5, 8]


def kernels_equal_their_references(device: torch.device, dtype: torch.dtype, sizes: Sizes) -> None:
    """Every kernel, into memory that was full of NaN."""
    for case in cases(device, dtype, sizes):
        poison(device, 1 << 16 if device.type == "cpu" else 1 << 30)
        far = distance(case)
        assert far <= case.tolerance, f"{case.name}, {dtype}: {far:.2e} > {case.tolerance:.0e}"


def build(folder: Path, architecture: str, device: torch.device, **settings: Any) -> Engine:
    """An engine of a tiny model with weights in float32."""
    tiny_models.save_checkpoint(folder, architecture, **KINDS.get(architecture, {}))
    return _engine(folder, device, **settings)


def _engine(folder: Path, device: torch.device, **settings: Any) -> Engine:
    config = {
        "model": str(folder),
        "device": device.type,
        "dtype": "float32",
        "num_gpu_blocks_override": PAGES,
        "max_num_seqs": 8,
    }
    return Engine.build(Config(**config | settings))


def _planner(engine: Engine, **limits: Any) -> Planner:
    return Planner(engine, num_pages=PAGES, groups=len(engine.resolved.groups.windows), **limits)


def logs(engine: Engine, prompts: Sequence[list[int]], length: int = 12) -> list[list[int]]:
    """What greedy sequences say together."""
    engine.reset()
    planner = _planner(engine)
    rows = [planner.add(Row(prompt, Sampling(length, temperature=0.0))) for prompt in prompts]
    planner.finish()
    return [row.log for row in rows]


def says_what_transformers_says(folder: Path, architecture: str, device: torch.device) -> Engine:
    """A tiny model against transformers on the same device; returns its engine."""
    engine = build(folder, architecture, device)
    changes = KINDS.get(architecture, {})
    oracle = tiny_models.tiny_model(architecture, **changes).to(device)
    (log,) = logs(engine, [PROMPT])
    with torch.inference_mode():
        tokens = torch.tensor([PROMPT + log], device=device)
        logits = oracle(tokens).logits[0]
    assert log == logits[len(PROMPT) - 1 : -1].argmax(-1).tolist()
    return engine


class Quantised(NamedTuple):
    """A checkpoint whose weights stay packed."""

    architecture: str
    settings: dict[str, Any]
    method: quantized_checkpoints.Method
    near: float = 0.0
    """How far below the greatest logit that of an answer may be, as a part of their spread: inputs
    of 8-bit floats are rounded, which the oracle does not do."""


_GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32}
_FP8: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
_BLOCK = _FP8 | {"weight_block_size": [128, 128]}
QUANTISED = {
    "int4": Quantised("LlamaForCausalLM", _GPTQ, quantized_checkpoints.gptq(symmetric=False)),
    "int4 in the order of activations": Quantised(
        "LlamaForCausalLM", _GPTQ | {"desc_act": True}, quantized_checkpoints.gptq(act_order=True)
    ),
    "experts in int4": Quantised("Qwen3MoeForCausalLM", _GPTQ, quantized_checkpoints.gptq()),
    "fp8 by tensor": Quantised("LlamaForCausalLM", _FP8, quantized_checkpoints.fp8(), 0.3),
    "fp8 by block": Quantised(
        "LlamaForCausalLM", _BLOCK, quantized_checkpoints.fp8((128, 128)), 0.3
    ),
    "experts in fp8": Quantised(
        "Qwen3MoeForCausalLM", _BLOCK, quantized_checkpoints.fp8((128, 128)), 0.3
    ),
}
_SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "moe_intermediate_size": 128,
}
"""Rows and columns of whole blocks of 128."""


def says_what_the_numbers_say(
    folder: Path, device: torch.device, case: Quantised, **settings: Any
) -> Engine:
    """A tiny quantised model against transformers with the floats that its codes mean; returns its
    engine."""
    changes = {
        n: size for n, size in _SIZES.items() if "moe" not in n or "Moe" in case.architecture
    }
    oracle = quantized_checkpoints.save(
        folder, case.architecture, case.settings, case.method, **changes
    )
    engine = _engine(folder, device, **settings)
    (log,) = logs(engine, [PROMPT])
    with torch.inference_mode():
        tokens = torch.tensor([PROMPT + log], device=device)
        logits = oracle.to(device)(tokens).logits[0][len(PROMPT) - 1 : -1]
    said = logits.gather(-1, tokens[:, len(PROMPT) :].T)[:, 0]
    assert bool((logits.amax(-1) - said <= case.near * logits.std(-1)).all()), case.settings
    return engine


def replays_are_what_eager_steps_are(engine: Engine, eager: Engine) -> None:
    """A capture must have happened, and no token differs."""
    assert engine.resolved.graphs is not None, engine.resolved.eager
    prompts = [PROMPT, PROMPT[:3], PROMPT * 5]
    assert logs(engine, prompts) == logs(eager, prompts)


def launching_ahead_changes_no_token(engine: Engine) -> None:
    """Steps through the pipeline, against steps that are read one by one."""
    expected = logs(engine, [PROMPT])[0]
    engine.reset()
    planner = _planner(engine)
    row = planner.add(Row(PROMPT, Sampling(12, temperature=0.0)))
    while planner.running:
        results = engine.submit(planner.plan())
        for result in [*results, *engine.finish()]:
            planner.settle(result)
    assert row.log == expected


@contextmanager
def no_waiting(device: torch.device) -> Iterator[None]:
    """A host that waits for the device raises."""
    if device.type != "cuda":
        yield
        return
    with warnings.catch_warnings():  # Of the setting itself, which is a prototype.
        warnings.filterwarnings("ignore", "Synchronization debug mode", UserWarning)
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def a_launched_step_waits_for_nothing(engine: Engine, device: torch.device) -> None:
    """`submit` of a decode step, with every wait an error."""
    from baton_worker.bench.gpu.engine_times import decode_plans

    engine.reset()
    first, second, *_ = decode_plans(engine.resolved, 2, 5, 3)
    engine.submit(first)
    with no_waiting(device):
        engine._pipeline._runner.launch(second, ahead=True)  # type: ignore[union-attr]
    engine.reset()


def mixed_plans_compile_nothing(engine: Engine) -> None:
    """What the warm-up has compiled serves whatever plans follow."""
    from triton import knobs

    compiled = list[str]()

    def note(**fields: Any) -> None:
        compiled.append(fields["repr"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knobs.runtime, "jit_post_compile_hook", note)
        assert serve(engine, PLANS) > PLANS / 3
    assert compiled == []


def hidden_states(engine: Engine, prompts: Sequence[list[int]]) -> list[Tensor]:
    """Of the last token of each prompt, run together."""
    found = list[Tensor]()
    engine.reset()
    forward: Any = engine._runner.forward
    planner = _planner(engine)
    for prompt in prompts:
        planner.add(Row(prompt, Sampling(1, temperature=0.0)))
    plan = planner.plan()
    inputs = engine._runner.batch.prepare(plan)
    with torch.inference_mode():
        hidden = forward(inputs)
        found = [hidden[last].clone() for last in inputs.rows.last.tolist()]
    engine.reset()
    return found


def rows_do_not_depend_on_each_other(engine: Engine, others: Sequence[int]) -> dict[int, bool]:
    """By number of neighbours: whether the bits of a prompt's hidden state are those it has
    alone."""
    (alone,) = hidden_states(engine, [PROMPT])
    beside = [[5 + i % 50, 9, 4 + i % 7] for i in range(max(others))]
    return {
        count: torch.equal(alone, hidden_states(engine, [PROMPT, *beside[:count]])[0])
        for count in others
    }


def a_decoded_token_has_the_bits_of_a_prompt(engine: Engine) -> bool:
    """Whether the hidden state of a prompt's last token is that of a decode step behind the rest of
    it, as for a stream that goes on elsewhere."""
    (whole,) = hidden_states(engine, [PROMPT])
    engine.reset()
    planner = _planner(engine, chunk=len(PROMPT) - 1)
    planner.add(Row(PROMPT, Sampling(2, temperature=0.0)))
    engine.step(planner.plan())
    forward: Any = engine._runner.forward
    inputs = engine._runner.batch.prepare(planner.plan())
    with torch.inference_mode():
        decoded = forward(inputs)[0].clone()
    engine.reset()
    return torch.equal(whole, decoded)


def products_do_not_depend_on_the_place_of_a_row(
    device: torch.device, dtype: torch.dtype, width: int, block: int
) -> bool:
    """Whether a row of a product of `block` rows has the same bits wherever it stands, which
    `--exact` relies on."""
    weight = torch.randn(width, width, device=device).to(dtype)
    row = torch.randn(width, device=device).to(dtype)
    first, found = None, list[bool]()
    for place in (0, 1, block // 2, block - 1):
        x = torch.randn(block, width, device=device).to(dtype)
        x[place] = row
        y = torch.nn.functional.linear(x, weight)[place]
        first = y if first is None else first
        found.append(torch.equal(y, first))
    return all(found)


def memory_of_busy_steps(engine: Engine, device: torch.device) -> int:
    """The most bytes that steps take beside what is held, with as many rows as there may be."""
    memory = device_memory(device)
    rows = min(engine.resolved.max_num_seqs, PAGES // 8)
    prompts = [[3 + row % 7] * 40 for row in range(rows)]
    if memory is not None:
        memory.reset_peak()
    logs(engine, prompts, length=4)
    return 0 if memory is None else memory.peak() - memory.held()


def kv_passes_between_caches(device: torch.device, *, direct: bool) -> None:
    """Blocks of one cache to another on a device; `direct`: within its memory."""
    expected = filled(8)
    source, target = cache(8, device=device), cache(8, device=device)
    for mine, layer in zip(source.layers, expected.layers, strict=True):
        mine.copy_(layer)
    pages = pack(range(8), "I")
    reader = PageContent(source).reader(Grant(1, 9, TOKEN, pages, LENGTH))
    content = PageContent(target)
    writer = content.writer(Pull(1, 9, "", TOKEN, 0, LENGTH, pages))
    for extent in writer.extents():
        size = content.block_bytes(extent)
        block: Any = np.zeros(size, np.uint8)
        if direct:
            block = torch.zeros(size, dtype=torch.uint8, device=device)
        reader.read(extent, block)
        writer.write(extent, block)
    for mine, layer in zip(target.layers, expected.layers, strict=True):
        assert torch.equal(mine.cpu().flatten(0, 1)[:LENGTH], layer.flatten(0, 1)[:LENGTH])


_EXPORTER = """
import sys, torch
from baton_worker.kv_transfer.cuda_ipc import CudaMemory
shared = CudaMemory(torch.device("cuda", 0))
memory = shared.allocate(1 << 20)
memory.fill_(7)
torch.cuda.synchronize()
print(shared.export(memory).hex(), flush=True)
sys.stdin.read()
"""


def another_process_opens_memory(device: torch.device) -> None:
    """Memory that a child process has allocated, opened by its handle."""
    command = [sys.executable, "-c", _EXPORTER]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        handle = bytes.fromhex(child.stdout.readline())
        opened = CudaMemory(device).open(handle)
        assert opened.shape == (1 << 20,) and bool((opened == 7).all())
        del opened
    finally:
        child.communicate()


Said: TypeAlias = list[list[int]]
Worker: TypeAlias = Callable[[Path, torch.device, Path], Said]
"""What a worker says of a model in a folder, over memory of the keeper of a run directory."""
_WORKER = """
import sys, torch
from pathlib import Path
from tests.gpu import checks
folder, run_dir, name = sys.argv[1:]
print(getattr(checks, name)(Path(folder), torch.device("cuda", 0), Path(run_dir)))
sys.stdout.flush()
sys.stdin.read()
"""


def in_this_process(worker: Worker, folder: Path, device: torch.device, run_dir: Path) -> Said:
    """What a worker says."""
    return worker(folder, device, run_dir)


def in_a_killed_process(worker: Worker, folder: Path, device: torch.device, run_dir: Path) -> Said:
    """What a worker says in a process of its own, which is then killed. A worker also kills its
    process when its keeper ends."""
    command = [sys.executable, "-c", _WORKER, str(folder), str(run_dir), worker.__name__]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        said: Said = json.loads(child.stdout.readline())
        return said
    finally:
        child.kill()
        child.communicate()


def said_over_kept_memory(folder: Path, device: torch.device, run_dir: Path) -> Said:
    """What a worker says whose memory outlives it."""
    return logs(kept_engine(folder, device, run_dir), [PROMPT])


def kept_engine(folder: Path, device: torch.device, run_dir: Path) -> Engine:
    """An engine whose keeper has its socket in this directory."""
    engine = _engine(folder, device, run_dir=run_dir, num_gpu_blocks_override=0)
    assert engine._loaded.kept is not None and engine.kept_pages is not None
    return engine


@contextmanager
def keeper_process(run_dir: Path) -> Iterator[None]:
    """The keeper of the first GPU, as `baton serve` starts it."""
    command = [sys.executable, "-m", "baton", "device-keeper", "--run-dir", str(run_dir)]
    child = subprocess.Popen(command)
    try:
        until(lambda: KeeperClient.of(run_dir, torch.device("cuda", 0)) is not None, "a keeper")
        yield
    finally:
        child.kill()
        child.wait()


def said_by_the_next_worker(folder: Path, device: torch.device, run_dir: Path) -> Said:
    """What a worker says over memory that another one has left."""
    engine = kept_engine(folder, device, run_dir)
    assert engine.kept_pages is not None and engine.kept_pages.as_left
    assert engine.kept_pages.memory.any(), "its pages are there"
    memory = engine.kept_pages.memory
    for plane in engine.cache.planes:
        assert 0 <= plane.data_ptr() - memory.data_ptr() < len(memory), "there, and not here too"
    said = logs(engine, [PROMPT])
    engine.close()
    return said


def the_next_worker_attaches(
    folder: Path,
    device: torch.device,
    run_dir: Path,
    run: Callable[[Worker, Path, torch.device, Path], Said],
) -> None:
    """To what the first one has left: weights that can be read no more, and pages as they were."""
    tiny_models.save_checkpoint(folder, "LlamaForCausalLM")
    said = run(said_over_kept_memory, folder, device, run_dir)
    spoil(folder / "model.safetensors")
    assert run(said_by_the_next_worker, folder, device, run_dir) == said


def spoil(weights: Path) -> None:
    """Zeros in the place of half of a file, whose times and size stay."""
    stat = weights.stat()
    with weights.open("r+b") as file:
        file.seek(stat.st_size // 2)
        file.write(bytes(stat.st_size - stat.st_size // 2))
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
