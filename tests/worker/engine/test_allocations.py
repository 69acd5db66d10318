"""What decoding one token allocates: the same at every length, and nothing is ever put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from baton.protocol import Sampling
from baton_worker.attention import AttentionBatch, AttentionSpec
from baton_worker.attention.backends.cpu import CpuBackend
from baton_worker.attention.selector import AttentionSelector
from baton_worker.checkpoint.load import load_model
from baton_worker.engine.batch.input_batch import BatchSizes, InputBatch
from baton_worker.engine.forward.causal_forward import CausalForward
from baton_worker.engine.model_runner import ModelRunner
from baton_worker.kv_cache import KVCache
from baton_worker.layers.build_context import BuildContext
from tests.fakes.scheduler_planner import Planner, Sequence
from tests.support.tiny_models import save_checkpoint

DEVICE, PAGE_SIZE, NUM_PAGES, LENGTH = torch.device("cpu"), 16, 64, 96
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM")
JOINING = ("cat", "stack", "concat", "hstack", "vstack", "pad")
"""Operators that make a longer tensor of shorter ones."""


class Allocations(TorchDispatchMode):
    """Counts operators, and the bytes of results that share no memory with what went in."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: Counter[str] = Counter()
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {_address(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        fresh = {
            _address(x): x.untyped_storage().nbytes()
            for x in tree_leaves(result)
            if isinstance(x, Tensor) and _address(x) not in given
        }
        self.operators[str(func.overloadpacket.__name__)] += 1
        self.bytes += sum(fresh.values())
        return result


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@contextmanager
def counted() -> Iterator[Allocations]:
    with Allocations() as counter:
        yield counter


def planner_of(folder: Path, dtype: torch.dtype) -> Planner:
    loaded = load_model(folder, BuildContext(DEVICE, dtype))
    batch = InputBatch(
        BatchSizes(
            max_num_seqs=4,
            max_model_len=loaded.max_length,
            page_size=PAGE_SIZE,
            num_pages=NUM_PAGES,
            vocab_size=loaded.vocab_size,
        )
    )
    cache = KVCache(loaded.spec, NUM_PAGES, PAGE_SIZE, dtype=dtype, device=DEVICE)
    runner = ModelRunner(CausalForward(loaded.model, cache, DEVICE), cache, batch)
    return Planner(runner, num_pages=NUM_PAGES, page_size=PAGE_SIZE)


def decode(planner: Planner, rows: int, **fields: Any) -> list[Allocations]:
    """What each decode step of sequences that grow over several pages has allocated."""
    for row in range(rows):
        prompt = [30 + row] * (5 + row)
        planner.add(Sequence(prompt, Sampling(max_tokens=LENGTH, seed=row, **fields)))
    planner.step()
    steps = []
    while planner.running:
        with counted() as counter:
            planner.step()
        steps.append(counter)
    assert len(steps) == LENGTH - 1 > 5 * PAGE_SIZE
    return steps


@pytest.mark.row("F13.11")
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_decode_step_joins_nothing_and_does_not_grow(
    architecture: str, dtype: torch.dtype, rows: int, tmp_path: Path
) -> None:
    save_checkpoint(tmp_path, architecture)
    steps = decode(planner_of(tmp_path, dtype), rows, temperature=0.0)
    for step in steps:
        assert not set(step.operators) & set(JOINING)
    if native():
        assert len({step.bytes for step in steps}) == 1
        assert all(step.operators == steps[0].operators for step in steps)


@pytest.mark.row("F04.32")
def test_decode_steps_read_block_tables_and_lengths_at_one_address(tmp_path: Path) -> None:
    """Their pages grow and memory is made for that now and then; for a token it never is."""
    save_checkpoint(tmp_path, "LlamaForCausalLM")
    planner = planner_of(tmp_path, torch.float32)
    runner, steps = planner.target, list[tuple[tuple[int, ...], int]]()
    assert isinstance(runner, ModelRunner) and isinstance(runner.forward, CausalForward)
    model, buffers = runner.forward.model, runner.forward.buffers
    forward = model.forward

    def watched(
        tokens: Tensor, positions: Tensor, batch: AttentionBatch, cache: KVCache, media: None
    ) -> Tensor:
        read = (batch.query_start_loc, batch.seq_lens, batch.block_table, batch.slot_mapping)
        steps.append((tuple(x.data_ptr() for x in read), buffers.allocations))
        return forward(tokens, positions, batch, cache)

    model.forward = watched  # type: ignore[method-assign]
    decode(planner, 3, temperature=0.0)
    # Tables of 1, 2, 4 and 8 pages a row.
    assert len({addresses for addresses, _ in steps[1:]}) <= 4
    late = steps[1 + 5 * PAGE_SIZE :]
    assert len(late) > 5 and len(set(late)) == 1


def native() -> bool:
    """The attention of this machine reads pages in place; the portable one gathers them."""
    call = AttentionSpec(
        num_heads=6,
        num_kv_heads=2,
        head_dim=8,
        scale=1.0,
        window=None,
        dtype=torch.float32,
        device=DEVICE,
    )
    return isinstance(AttentionSelector().select(call), CpuBackend)


def test_the_counter_counts() -> None:
    x = torch.ones(4, 8)
    with counted() as counter:
        torch.cat((x, x))
        x[1:].add_(1)
        x.view(8, 4)
    assert counter.operators["cat"] == 1 and counter.operators["add_"] == 1
    assert counter.bytes == 2 * 4 * 8 * 4
    assert set(counter.operators) & set(JOINING) == {"cat"}
