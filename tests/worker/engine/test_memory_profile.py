"""What steps and graphs take of a device, on a double that counts memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from baton.protocol import Sampling
from baton_scheduler.options import SchedulerOptions
from baton_worker.attention.selector import AttentionSelector
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Config
from baton_worker.distributed.communicator import SingleRank
from baton_worker.engine import engine_config
from baton_worker.engine.memory_profile import StepShape, Trial
from baton_worker.graphs import Repeater, Sizes, Uncaptured
from baton_worker.graphs.capture import Recording, Run
from baton_worker.kernels.cpu.call_recorder import Extent
from baton_worker.kv_cache import one_group
from baton_worker.layers.build_context import BuildContext
from baton_worker.sampling import Sampler
from baton_worker.sampling.sampler_backend import SamplerBackend
from tests.fakes.device_double import DOUBLE, Double, device_double
from tests.fakes.triton_interpreter import interpreter
from tests.support import tiny_models
from tests.support.worker.scheduled_engine import House

MIB = 2**20


def test_the_largest_step_decodes_in_all_rows_but_one() -> None:
    shape = StepShape.largest(20, 4, 8, whole=False)
    assert shape.counts == (1, 1, 1, 8, 8, 1) and shape.starts == (7, 7, 7, 0, 0, 0)
    assert StepShape.largest(20, 4, 100, whole=False).counts == (1, 1, 1, 17)
    assert StepShape.largest(2, 64, 8, whole=False).counts == (1, 1)
    assert StepShape.largest(20, 4, 8, whole=True) == StepShape((8, 8, 4), (0, 0, 0))


@pytest.fixture(scope="module")
def double() -> Iterator[Double]:
    pytest.importorskip("triton", reason="triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("tests/gpu has the device itself")
    with interpreter(), torch.inference_mode(), device_double() as made:
        from baton_worker.kernels.triton import sampling

        with pytest.MonkeyPatch.context() as patch:  # As many rows as make the interpreter fast.
            patch.setattr(sampling, "sample", partial(sampling.sample, rows=8))
            yield made


@pytest.fixture(scope="module")
def build() -> BuildContext:
    attention, sampler = AttentionSelector("triton"), Sampler(SamplerBackend("triton"))
    return BuildContext(DOUBLE, torch.float32, attention=attention, sampler=sampler)


@pytest.fixture(scope="module")
def loaded(
    double: Double, build: BuildContext, tmp_path_factory: pytest.TempPathFactory
) -> LoadedModel:
    folder = tmp_path_factory.mktemp("llama")
    changes = {"num_hidden_layers": 1, "vocab_size": 512}
    tiny_models.save_checkpoint(folder, "LlamaForCausalLM", **changes)
    return load_model(folder, build)


def trial(loaded: LoadedModel, rows: int = 4, tokens: int = 64) -> Trial:
    return Trial(one_group(loaded.kv_spec, 4), rows, tokens, 128, 4)


class Keeping(Repeater):
    """Graphs that take so many bytes for each row."""

    def __init__(self, bytes_per_row: int) -> None:
        self._bytes_per_row, self.captured = bytes_per_row, list[int]()

    def capture(self, run: Run, extent: Extent) -> Recording:
        self.captured.append(extent.rows)
        kept = torch.empty(extent.rows * self._bytes_per_row, dtype=torch.uint8, device=DOUBLE)
        recording = super().capture(run, extent)
        recording.memory = kept  # type: ignore[attr-defined]
        return recording


class Refusing(Repeater):
    def capture(self, run: Run, extent: Extent) -> Recording:
        raise Uncaptured("it waits for the host")


@pytest.mark.row("F12.01")
def test_a_step_and_graphs_are_measured_and_leave_nothing_behind(
    double: Double, build: BuildContext, loaded: LoadedModel
) -> None:
    held, ranks = double.held(), SingleRank()
    few, many = (
        trial(loaded, rows, tokens).profile(build, loaded, ranks, None, double, None)
        for rows, tokens in ((4, 64), (8, 96))
    )
    logits = 4 * 512 * 4
    assert logits < few.step < 10 * MIB and few.graphs == 0
    assert many.step - few.step >= logits
    sizes, recorder = Sizes((1, 2, 4, 8), 128, mixed=(4, 6, 8)), Keeping(MIB)
    found = trial(loaded).profile(build, loaded, ranks, None, double, sizes, recorder)
    assert recorder.captured == [8, 1, 7, 3]
    # What was captured, and each of the others as the last; buffers are small beside them.
    assert 0 <= found.graphs - (8 + 1 + 7 + 3 + 3 * 3) * MIB < MIB and found.step == few.step
    none = trial(loaded).profile(build, loaded, ranks, None, double, sizes, Refusing())
    assert none.graphs == 0
    assert double.held() == held


@pytest.mark.row("F12.01")
def test_pages_leave_room_for_the_largest_step(
    double: Double, build: BuildContext, loaded: LoadedModel
) -> None:
    config = Config(
        max_num_seqs=8, max_num_batched_tokens=64, max_model_len=128, block_size=4,
        max_replay_rows=0, gpu_memory_utilization=0.95,
    )  # fmt: skip
    double.capacity = double.held() + 560 * 1024
    resolved = engine_config.resolve(config, build, loaded, memory=double)
    free, step = double.free(), resolved.profile.step
    assert step > 8 * 512 * 4
    assert resolved.num_pages == (int(0.95 * free) - step) // resolved.page_bytes
    assert "MiB for the largest step" in str(resolved)
    # Real steps of that size over as many pages.
    before = double.held()
    double.reset_peak()
    options = SchedulerOptions(max_num_batched_tokens=64)
    house = House(loaded, options, num_pages=resolved.num_pages, link=double, device=DOUBLE)
    for row in range(8):
        house.submit([*range(3, 60)], Sampling(3, temperature=0.9, seed=row, top_p=0.9))
    house.finish()
    # Indices have least sizes that are large for so small a device: the last one, and those before.
    staged = house.runner.forward.staged  # type: ignore[attr-defined]
    indices = 2 * sum(len(slab.there) for slab in staged._slabs)
    used = double.peak() - before - resolved.kv_bytes
    assert step / 4 < used <= step + indices
