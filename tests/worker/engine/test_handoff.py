"""A prefill and a decode worker with real models, the scheduler's decisions, and KV transfer over
every transport: the tokens are those of one worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from baton.errors import ModelError
from baton.protocol import Sampling
from baton_scheduler.disaggregation import handoff
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.kernels.kv_codes import CODES
from baton_worker.kv_transfer.registry import TRANSPORTS
from baton_worker.layers.build_context import BuildContext
from tests.fakes.worker_pairs import DEVICE, Team
from tests.support import tiny_models

HOST_TRANSPORTS = [n for n in TRANSPORTS.names() if not TRANSPORTS.load(n).on_device]
PROMPT = [(7 * n) % 300 + 10 for n in range(90)]
SAMPLINGS = [
    Sampling(24, temperature=0.0),
    Sampling(20, seed=2, temperature=0.9),
    Sampling(24, seed=3, temperature=0.7, top_k=20, repetition_penalty=1.2),
]


@contextmanager
def team(
    loaded: LoadedModel, run_dir: Path, transport: str = "tcp", sizes: tuple[int, int] = (4, 8)
) -> Iterator[Team]:
    if transport == "nixl":
        pytest.importorskip("nixl")
    made = Team(loaded, run_dir, transport, ("prefill", sizes[0]), ("decode", sizes[1]))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handoff, "_LEAST_PART", 8)


@pytest.fixture(scope="module")
def checkpoint(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[Any, LoadedModel]]:
    """A tiny model of an architecture: transformers' and ours."""
    made: dict[str, tuple[Any, LoadedModel]] = {}

    def make(architecture: str) -> tuple[Any, LoadedModel]:
        if architecture not in made:
            folder = tmp_path_factory.mktemp(architecture)
            with torch.random.fork_rng():
                torch.manual_seed(0)
                oracle = tiny_models.save_checkpoint(folder, architecture)
            made[architecture] = oracle, load_model(folder, BuildContext(DEVICE, torch.float32))
        return made[architecture]

    return make


_alone: dict[int, list[list[int]]] = {}


def one_worker(loaded: LoadedModel, run_dir: Path) -> list[list[int]]:
    """What a worker says that runs both legs; once per model."""
    if id(loaded) not in _alone:
        _alone[id(loaded)] = _one_worker(loaded, run_dir)
    return _alone[id(loaded)]


def _one_worker(loaded: LoadedModel, run_dir: Path) -> list[list[int]]:
    alone = Team(loaded, run_dir, "tcp", ("both", 4))
    for sampling in SAMPLINGS:
        alone.submit(PROMPT, sampling)
    logs = list(alone.finish().values())
    alone.close()
    return logs


@pytest.mark.row("F15.01", "F15.03")
@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
@pytest.mark.parametrize(
    "architecture",
    [
        "DeepseekV3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Llama4ForCausalLM",
        pytest.param("DeepseekV32ForCausalLM", marks=pytest.mark.row("F04.26", "L04")),
        pytest.param("GlmMoeDsaForCausalLM", marks=pytest.mark.row("F04.26", "L05")),
    ],
)
def test_the_tokens_are_those_of_one_worker(
    checkpoint: Callable[[str], tuple[Any, LoadedModel]],
    run_dir: Path,
    architecture: str,
    transport: str,
) -> None:
    _, loaded = checkpoint(architecture)
    with team(loaded, run_dir, transport) as split:
        for sampling in SAMPLINGS:
            split.submit(PROMPT, sampling)
        assert list(split.finish().values()) == one_worker(loaded, run_dir)
        assert split.state.counters.handoffs == len(SAMPLINGS)
        assert not split.state.counters.failed_transfers
        carried = split.state.handoffs.transfer_totals.stats()
        assert [row.transport for row in carried] == [transport]


BOUNDED = [
    pytest.param("Lfm2ForCausalLM", marks=pytest.mark.row("S10", "F07.12", "F23.10")),
    pytest.param("Lfm2MoeForCausalLM", marks=pytest.mark.row("M16")),
    pytest.param("MiniMaxForCausalLM", marks=pytest.mark.row("M15", "F04.17")),
    pytest.param("Mamba2ForCausalLM", marks=pytest.mark.row("S02", "F04.20", "F07.02", "F07.15")),
    pytest.param("BambaForCausalLM", marks=pytest.mark.row("S04", "F04.20", "F07.02", "F07.15")),
    pytest.param("FalconH1ForCausalLM", marks=pytest.mark.row("S06")),
    pytest.param("GraniteMoeHybridForCausalLM", marks=pytest.mark.row("S09")),
    pytest.param("MambaForCausalLM", marks=pytest.mark.row("S01", "F04.19", "F07.01", "F07.03")),
    pytest.param("JambaForCausalLM", marks=pytest.mark.row("S03")),
    pytest.param("Qwen3NextForCausalLM", marks=pytest.mark.row("S11", "F04.18", "F07.13")),
    pytest.param(
        "KimiLinearForCausalLM", marks=pytest.mark.row("L09", "F04.17", "F07.13", "F23.06")
    ),
]


@pytest.mark.parametrize("architecture", BOUNDED)
def test_what_layers_of_bounded_memory_keep_is_passed_on(
    checkpoint: Callable[[str], tuple[Any, LoadedModel]],
    run_dir: Path,
    architecture: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Inputs of convolutions; states of pages, also of the last one, which is not full."""
    _, loaded = checkpoint(architecture)
    with team(loaded, run_dir, sizes=(4, 4)) as split:
        target = split.desks["decode-1"].cache
        copied, copy = list[int](), target.copy
        monkeypatch.setattr(target, "copy", lambda old, new: (copied.extend(old), copy(old, new)))
        for sampling in SAMPLINGS:
            split.submit(PROMPT, sampling)
        assert list(split.finish().values()) == one_worker(loaded, run_dir)
        assert split.state.counters.handoffs == len(SAMPLINGS)
        assert not split.state.counters.failed_transfers
        assert copied, "the pages that are not full are used as far as they go"


def test_states_are_not_passed_on_to_pages_of_another_size(
    checkpoint: Callable[[str], tuple[Any, LoadedModel]], run_dir: Path
) -> None:
    """The sequence stays where it is: there are no states between two pages."""
    _, loaded = checkpoint("MiniMaxForCausalLM")
    with team(loaded, run_dir, sizes=(4, 8)) as split:
        split.submit(PROMPT, SAMPLINGS[0])
        assert list(split.finish().values()) == one_worker(loaded, run_dir)[:1]
        assert not split.state.counters.handoffs and not split.desks["decode-1"].pulled


LATENT = "DeepseekV3ForCausalLM"


@pytest.mark.row("F12.09")
def test_a_page_keeps_one_latent_and_one_turned_key_per_token(
    checkpoint: Callable[[str], tuple[Any, LoadedModel]], run_dir: Path
) -> None:
    """Nothing per head; and what attention makes of it is what transformers says."""
    oracle, loaded = checkpoint(LATENT)
    config = oracle.config
    with team(loaded, run_dir) as split:
        width = config.kv_lora_rank + config.qk_rope_head_dim
        for desk in split.desks.values():
            shapes = [layer.shape[1:] for layer in desk.cache.layers]
            assert shapes == [(desk.cache.page_size, 1, 1, width)] * config.num_hidden_layers
        split.submit(PROMPT, Sampling(20, temperature=0.0))
        [log] = split.finish().values()
    with torch.inference_mode():
        logits = oracle(torch.tensor([PROMPT + log])).logits[0]
    assert log == logits[len(PROMPT) - 1 : -1].argmax(-1).tolist()


@pytest.mark.row("F12.11")
@pytest.mark.parametrize("transport", HOST_TRANSPORTS)
@pytest.mark.parametrize("sizes", [(4, 4), (4, 8), (8, 4)], ids=str)
def test_latents_are_used_again_where_they_are_and_elsewhere(
    checkpoint: Callable[[str], tuple[Any, LoadedModel]],
    run_dir: Path,
    transport: str,
    sizes: tuple[int, int],
) -> None:
    """The second turn finds its prefix where the first one was computed, and the decode worker has
    pages of the first: what it pulls is only what is new."""
    oracle, loaded = checkpoint(LATENT)
    with team(loaded, run_dir, transport, sizes) as split:
        first = split.submit(PROMPT, Sampling(20, temperature=0.0))
        split.finish()
        before = sum(pulled.num_bytes for pulled in split.desks["decode-1"].pulled)
        longer = [*PROMPT, *split.logs[first], *PROMPT[:9]]
        second = split.submit(longer, Sampling(20, temperature=0.0))
        log = split.finish()[second]
        assert split.cached[second] >= len(PROMPT) // 8 * 8
        later = sum(pulled.num_bytes for pulled in split.desks["decode-1"].pulled) - before
        assert 0 < later < before / 2
    with torch.inference_mode():
        logits = oracle(torch.tensor([longer + log])).logits[0]
    assert log == logits[len(longer) - 1 : -1].argmax(-1).tolist()


@pytest.mark.row("F12.11")
@pytest.mark.parametrize("codes", CODES.values(), ids=CODES)
def test_latents_in_numbers_that_no_kernel_reads_are_refused(tmp_path: Path, codes: Any) -> None:
    tiny_models.save_checkpoint(tmp_path, LATENT)
    with pytest.raises(ModelError, match="No kernel reads latents as"):
        load_model(tmp_path, BuildContext(DEVICE, torch.float32, codes=codes))


@pytest.mark.row("F12.11")
def test_latents_of_another_precision_are_not_passed_on(
    checkpoint: Callable[[str], tuple[Any, LoadedModel]], run_dir: Path
) -> None:
    """The sequence stays where it is, rather than going on with keys of another kind."""
    _, loaded = checkpoint(LATENT)
    with team(loaded, run_dir) as split:
        target = split.state.fleet.get("decode-1")
        assert target is not None and target.info.kv_layout.startswith("float32x")
        other = target.info.kv_layout.replace("float32", "bfloat16")
        target.info = msgspec.structs.replace(target.info, kv_layout=other)
        split.submit(PROMPT, SAMPLINGS[0])
        assert list(split.finish().values()) == one_worker(loaded, run_dir)[:1]
        assert not split.state.counters.handoffs and not split.desks["decode-1"].pulled
        assert not any(np.count_nonzero(layer) for layer in split.desks["decode-1"].cache.layers)
