"""Memory of steps and captured graphs on a device, measured before pages take the rest.

vLLM's profile run: the largest step that may come runs once over a trial cache of one page, which
stands for every page of every sequence; what it computes is meaningless, what it allocates is not.
All ranks of a model run it together.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import add
from typing import Any

import numpy as np
import torch

from baton.errors import SettingsError
from baton.protocol import Sampling
from baton_worker.attention import AttentionBatch
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.distributed.communicator import Communicator, numbers
from baton_worker.distributed.expert_parallel import LockstepModel
from baton_worker.distributed.step_sync import StepSync
from baton_worker.graphs import CudaRecorder, GraphedModel, Recorder, Sizes, Uncaptured
from baton_worker.graphs.agreed_recorder import AgreedRecorder
from baton_worker.graphs.capture import Recording, Run
from baton_worker.kernels.cpu.call_recorder import Extent
from baton_worker.kv_cache import KVCache, LayerGroups
from baton_worker.layers.attention.whole_texts import by_length
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.decoder import Model
from baton_worker.platform.device_memory import DeviceMemory
from baton_worker.sampling import Sampler
from baton_worker.sampling.parameters import PARAMETERS, fill


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """Bytes beside the weights, of the rank that needs most."""

    step: int = 0
    """The most that the largest step holds at one time."""
    graphs: int = 0
    """Captured graphs: their memory and that of the driver."""

    @property
    def size(self) -> int:
        """Bytes that pages leave free."""
        return self.step + self.graphs

    def __str__(self) -> str:
        """One phrase for a log line."""
        return f"{self.step >> 20} MiB for the largest step, {self.graphs >> 20} MiB for graphs"


@dataclass(frozen=True, slots=True)
class StepShape:
    """Row lengths of one ragged step."""

    counts: tuple[int, ...]
    """New tokens per row."""
    starts: tuple[int, ...]
    """Tokens of each row whose KV would be there."""

    @classmethod
    def largest(cls, num_tokens: int, rows: int, longest: int, *, whole: bool) -> StepShape:
        """As many tokens as a step may have: every row but one decodes behind the longest
        sequence, and prompts take the rest. `whole`: only whole texts."""
        decoding = 0 if whole else max(0, min(rows - 1, num_tokens - 1))
        full, rest = divmod(num_tokens - decoding, longest)
        prompts = (longest,) * full + (rest,) * (rest > 0)
        starts = (longest - 1,) * decoding + (0,) * len(prompts)
        return cls((1,) * decoding + prompts, starts)

    def batch(self, cache: KVCache, device: torch.device) -> AttentionBatch:
        """The step with page 0 in the place of every page."""
        width = -(-max(map(add, self.counts, self.starts)) // cache.page_size)
        tables = np.zeros((len(cache.groups.windows), len(self.counts), width), np.int32)
        return AttentionBatch.build_all(self.counts, self.starts, tables, cache.page_size, device)


class MemoryProfiler:
    """Measures one model.

    Args:
        loaded: the model, and its images' encoder.
        model: what runs its steps, on all ranks.
        cache: makes a cache of so many pages.
        memory: counters of `device`.
        ranks: they call the same methods.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        model: Any,
        cache: Callable[[int], KVCache],
        memory: DeviceMemory,
        device: torch.device,
        ranks: Communicator,
    ) -> None:
        self._loaded, self._model, self._cache = loaded, model, cache
        self._memory, self._device, self._ranks = memory, device, ranks

    def step(self, shape: StepShape, rows: int, sampler: Sampler) -> int:
        """Bytes of a step of this shape, of which so many rows sample, or of encoding as many
        embeddings of images as it has tokens, whichever is more.

        Raises:
            SettingsError: it does not fit.
        """
        cache = self._cache(1)
        self._memory.reset_peak()
        try:
            self._run(shape, rows, cache, sampler)
            self._encode(sum(shape.counts))
        except torch.OutOfMemoryError as error:
            raise SettingsError(
                f"A step of {sum(shape.counts)} tokens and {len(shape.counts)} rows does not fit "
                f"beside the weights on {self._device}. Lower --max-num-batched-tokens or "
                "--max-num-seqs."
            ) from error
        peak = self._memory.peak()
        return self._most(peak - self._memory.held())

    def graphs(self, sizes: Sizes, recorder: Recorder) -> int:
        """Bytes of the graphs of these sizes: the largest and the smallest are captured, and the
        others, which share the memory of the largest, take what the smallest took. 0 if they
        cannot be captured."""
        assert isinstance(self._model, Model)
        cache, measured = self._cache(1), _Measured(recorder, self._memory)
        outermost = sizes.outermost
        before = self._memory.free()
        graphed = GraphedModel(self._model, cache, outermost, measured, self._device)
        try:
            graphed.capture()
            used = before - self._memory.free()
        except Uncaptured:  # The engine captures again, and logs why it runs without.
            used = measured.last = 0
        # Recordings and what they run refer to one another.
        del graphed
        gc.collect()
        return self._most(used + measured.last * (sizes.number - outermost.number))

    def _most(self, mine: int) -> int:
        return max(numbers(self._ranks, max(mine, 0), self._device))

    @torch.inference_mode()
    def _run(self, shape: StepShape, rows: int, cache: KVCache, sampler: Sampler) -> None:
        tokens = torch.zeros(sum(shape.counts), dtype=torch.int64, device=self._device)
        batch, recipe = shape.batch(cache, self._device), self._loaded.recipe
        whole = recipe is not None and recipe.whole
        texts = by_length(shape.counts, self._device) if whole else ()
        hidden = self._model.forward(tokens, torch.zeros_like(tokens), batch, cache, texts)
        stage = self._loaded.spec.stage
        if not self._loaded.generates or (stage is not None and not stage.is_last):
            return
        logits = self._model.logits(hidden[:rows])
        if self._ranks.rank == 0:
            sampler.sample(logits, _parameters(len(logits)), np.zeros(len(logits), np.int64))

    def _encode(self, num_tokens: int) -> None:
        """Encode images of so many embeddings, on the first rank."""
        tower = getattr(self._model, "vision", None)
        if tower is None or self._ranks.rank:
            return
        shapes = tower.sample_media(num_tokens)
        pixels = [torch.zeros(shape) for shape, _ in shapes]
        tower.encode_media(pixels, [grid for _, grid in shapes])


def _parameters(rows: int) -> Any:
    """Of rows that sample in all ways that a device does at once."""
    one = np.zeros(1, PARAMETERS)
    fill(one[0], Sampling(1, temperature=1.0, top_p=0.9, top_k=50, min_p=0.01))
    return np.repeat(one, rows)


class _Measured:
    """A recorder that notes what the last capture took of a device's memory."""

    def __init__(self, recorder: Recorder, memory: DeviceMemory) -> None:
        self._recorder, self._memory, self.last = recorder, memory, 0

    def capture(self, run: Run, extent: Extent) -> Recording:
        """See `Recorder`."""
        before = self._memory.free()
        recording = self._recorder.capture(run, extent)
        self.last = max(0, before - self._memory.free())
        return recording


@dataclass(frozen=True, slots=True)
class Trial:
    """Parameters of a measurement: page groups, and limits of steps."""

    groups: LayerGroups
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    page_size: int

    def profile(
        self,
        build: BuildContext,
        loaded: LoadedModel,
        ranks: Communicator,
        lockstep: StepSync | None,
        memory: DeviceMemory,
        sizes: Sizes | None,
        recorder: Recorder | None = None,
    ) -> MemoryProfile:
        """Measure the largest step, and the graphs of these sizes if any are to be captured.

        Args:
            lockstep: step synchronization of the workers that share experts.
            recorder: captures; None: CUDA graphs.

        Raises:
            SettingsError: the largest step does not fit.
        """
        whole = loaded.recipe is not None and loaded.recipe.whole
        limits = (self.max_num_batched_tokens, self.max_num_seqs, self.max_model_len)
        shape = StepShape.largest(*limits, whole=whole)
        model: Any = loaded.model
        if lockstep is not None:
            model = LockstepModel(model, lockstep)
        cache = partial(self._cache, build, loaded)
        profiler = MemoryProfiler(loaded, model, cache, memory, build.device, ranks)
        step = profiler.step(shape, self.max_num_seqs, build.sampler)
        graphs = 0
        if sizes is not None:
            recorder = recorder or CudaRecorder(build.device)
            if ranks.size > 1:
                recorder = AgreedRecorder(recorder, ranks, build.device)
            graphs = profiler.graphs(sizes, recorder)
        return MemoryProfile(step, graphs)

    def _cache(self, build: BuildContext, loaded: LoadedModel, num_pages: int) -> KVCache:
        return KVCache(
            loaded.kv_spec,
            num_pages,
            self.page_size,
            dtype=build.dtype,
            device=build.device,
            codes=build.codes,
            layout=build.layout,
            groups=self.groups,
            spare=1,
        )
