"""Settings resolved against device and model: every "auto" has become a value."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import torch

from baton.errors import SettingsError
from baton.kv.page_groups import PageGroups
from baton.logs import logger
from baton.protocol import PoolingInfo
from baton_worker.checkpoint.load import LoadedModel
from baton_worker.config import Config
from baton_worker.device_keeper.messages import Found
from baton_worker.distributed.communicator import Communicator, SingleRank, numbers
from baton_worker.distributed.step_sync import StepSync
from baton_worker.engine import exactness
from baton_worker.engine.async_scheduling.policy import refuses as synchronous
from baton_worker.engine.memory import choose_pages, free_for_all
from baton_worker.engine.memory_profile import MemoryProfile, Trial
from baton_worker.engine.speculation.tree_support import check_tree
from baton_worker.graphs import Sizes, refuses
from baton_worker.kernels.page_layout import Layout
from baton_worker.kv_cache import (
    LayerGroups,
    bytes_per_cross_page,
    group_bytes,
    held_groups,
    one_group,
    page_groups,
)
from baton_worker.kv_cache.kept_pages import PageKeeper
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.decoder import Model
from baton_worker.platform.device_memory import DeviceMemory, device_memory
from baton_worker.spec import Decoder
from baton_worker.speculative.config import SpeculativeConfig, parse

log = logger(__name__)


_ON_CPU, _ON_GPU = 512, 2048
"""Most tokens of a step."""
_TAPED = 512
"""Most tokens of a step that is replayed on a CPU: a larger one spends its time in kernels."""
_ALIKE = LayerGroups((0,), (), ())


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the engine is built from."""

    build: BuildContext
    """That of the model's layers."""
    num_pages: int
    page_size: int
    page_bytes: int
    """Of a page of the target."""
    draft_page_bytes: int
    """Of a page of what drafts for it: there are as many."""
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int
    weight_bytes: int
    eos_ids: tuple[int, ...]
    pooling: PoolingInfo | None = None
    """What is given in place of text."""
    alignment: bool = False
    """Whether it says where in a recording tokens are."""
    host_pages: int = 0
    """Pages in host memory beside those."""
    encoder_cache_bytes: int = 0
    """Bytes for the embeddings of images; 0 for a model that sees none."""
    groups: LayerGroups = _ALIKE
    """Layers with block tables of their own; pages are those of one group."""
    ranks: int = 1
    """Processes that have a part of the model each; bytes are those of all."""
    stages: int = 1
    """Stages of a pipeline that run steps at the same time; 1: one step after the other."""
    context: int = 1
    """Ranks that have a part of the tokens of a page each."""
    graphs: Sizes | None = None
    """Steps that are captured and replayed."""
    eager: str = ""
    """Why none is, as half a sentence."""
    exact: bool = False
    """Whether a token's numbers depend on its own sequence alone, on a GPU."""
    synchronous: str = "it is not asked for"
    """Why each step is read before the next one is launched, as half a sentence; "" if it is
    not."""
    speculative: SpeculativeConfig | None = None
    """How tokens are drafted, if they are."""
    profile: MemoryProfile = field(default_factory=MemoryProfile)
    """What steps and graphs take of a GPU."""
    pages: PageKeeper | None = None
    """Leases memory for pages, which outlives the worker."""

    @property
    def kv_bytes(self) -> int:
        """Bytes of all pages, those of drafts included."""
        return self.num_pages * (self.page_bytes + self.draft_page_bytes)

    @property
    def spare_pages(self) -> int:
        """Pages beside those: for what no sequence is to keep."""
        return int(self.graphs is not None or self.context > 1 or self.pages is not None)

    @property
    def dtype_name(self) -> str:
        """Like "bfloat16"."""
        return str(self.build.dtype).removeprefix("torch.")

    def __str__(self) -> str:
        """One line for the log: what every "auto" has become."""
        where = f"{self.build.device}, {self.dtype_name}, {self.build.threads} threads"
        where += f" on each of {self.ranks} ranks" if self.ranks > 1 else ""
        where += f", of which {self.context} share KV" if self.context > 1 else ""
        pages = f"{self.num_pages} pages of {self.page_size} tokens ({self.kv_bytes >> 20} MiB)"
        pages += f" for {self.groups}" if len(self.groups.windows) > 1 else ""
        pages += f" in {self.build.codes}" if self.build.codes else ""
        pages += " head by head" if self.build.layout is Layout.HND else ""
        pages += f" beside {self.profile}" if self.profile.size else ""
        batch = f"{self.max_num_seqs} rows, {self.max_num_batched_tokens} tokens a step"
        longest = f"sequences of at most {self.max_model_len} tokens"
        parts = (where, pages, batch, longest, self._decode_steps, self._launches, self._numbers)
        return "; ".join(filter(None, parts))

    @property
    def _launches(self) -> str:
        if self.build.device.type == "cpu":
            return ""
        if self.synchronous:
            return f"each step is read before the next is launched: {self.synchronous}"
        return "steps are launched ahead"

    @property
    def _numbers(self) -> str:
        """What failover may promise."""
        if self.build.device.type == "cpu":
            return ""
        if self.exact:
            return "exact: a stream that goes on elsewhere has the same tokens"
        return "not exact: a stream that goes on elsewhere may have other tokens (--exact)"

    @property
    def _decode_steps(self) -> str:
        if self.graphs is None:
            return f"decode steps run kernel by kernel: {self.eager}" if self.eager else ""
        if self.build.device.type == "cuda":
            return f"decode steps replayed as {self.graphs}"
        most = f"{self.graphs.rows[-1]} rows and {self.graphs.tokens} tokens"
        return f"steps of at most {most} replayed"


def resolve(
    config: Config,
    build: BuildContext,
    loaded: LoadedModel,
    ranks: Communicator | None = None,
    lockstep: StepSync | None = None,
    memory: DeviceMemory | None = None,
    pages: PageKeeper | None = None,
) -> EngineConfig:
    """Size the batch and the cache for a loaded model: the same for all ranks that call this. On a
    GPU they run the largest step and capture graphs, to leave room for both.

    Args:
        lockstep: step synchronization of the workers that share experts.
        memory: counters of the device, if not those of `device_memory`.
        pages: leases memory for pages. Of those that the worker before left there are as many
            again; nothing is measured, as it has done so.

    Raises:
        SettingsError: more length was asked for than the model has, or no page fits.
    """
    wanted = _longest(config, loaded)
    ranks, device = SingleRank() if ranks is None else ranks, build.device
    exactness.check(config, device, loaded)
    of_page = (config.block_size, build.dtype, build.codes)
    groups = _groups(config, build, loaded)
    own_bytes = numbers(ranks, group_bytes(loaded.kv_spec, groups, *of_page), device)
    page_bytes = sum(own_bytes)
    # The memory that is left can be measured once all have loaded: this is where they wait.
    weight_bytes = sum(numbers(ranks, loaded.weight_bytes, device))
    images = config.encoder_cache_bytes if loaded.spec.tower is not None else 0
    # The KV of states in pages of their own may take as much again.
    crosses = bytes_per_cross_page(loaded.unstaged, config.block_size, build.dtype) > 0
    on_cpu = device.type == "cpu"
    max_num_batched_tokens = _batch_tokens(config, loaded, wanted, on_cpu)
    eager = refuses(config, device, loaded, ranks.size)
    profile = MemoryProfile()
    left = Found() if pages is None or not page_bytes else pages.found()
    if left.num_pages:
        config = config.model_copy(update={"num_gpu_blocks_override": left.num_pages})
    elif page_bytes and (memory := memory or device_memory(device)) is not None:
        limits = (config.max_num_seqs, max_num_batched_tokens, wanted)
        trial = Trial(groups, *limits, config.block_size)
        sizes = None if eager else _graphs(config, device, loaded, wanted, max_num_batched_tokens)
        profile = trial.profile(build, loaded, ranks, lockstep, memory, sizes)
    # What the worker before left is taken, and is this one's.
    free = free_for_all(device, ranks, own_bytes, memory) + left.size - images * (1 + crosses)
    taken = PageGroups(groups.windows, config.block_size, max_num_batched_tokens)
    draft_page_bytes = _draft_page_bytes(loaded, ranks, device)
    reserved = ranks.size * profile.size
    bytes_each = page_bytes + draft_page_bytes
    budget = choose_pages(config, bytes_each, wanted, free, on_cpu, taken, reserved)
    longest = budget.max_model_len, max_num_batched_tokens
    graphs = None if eager else _graphs(config, device, loaded, *longest)
    if (most := budget.max_model_len) < wanted:
        held = "%d KV pages hold sequences of at most %d tokens, not %d"
        log.warning(held, budget.num_pages, most, wanted)
    return EngineConfig(
        build=build,
        num_pages=budget.num_pages,
        page_size=config.block_size,
        page_bytes=page_bytes,
        draft_page_bytes=draft_page_bytes,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=most,
        vocab_size=loaded.vocab_size,
        weight_bytes=weight_bytes,
        ranks=ranks.size,
        stages=_stages(config, loaded),
        context=config.decode_context_parallel_size,
        eos_ids=loaded.eos_token_ids,
        pooling=_pooling(loaded, most, max_num_batched_tokens - config.max_num_seqs),
        # Other ranks and stages keep the attention of their own heads and layers.
        alignment=ranks.size == 1 and loaded.spec.alignment_filter > 0,
        encoder_cache_bytes=images,
        host_pages=config.host_cache_bytes // page_bytes if page_bytes else 0,
        groups=groups,
        graphs=graphs,
        eager=eager or "",
        exact=config.exact and not on_cpu,
        synchronous=synchronous(config, device, loaded, build.sampler) or "",
        profile=profile,
        pages=pages if page_bytes else None,
        speculative=_speculative(config, loaded),
    )


def _groups(config: Config, build: BuildContext, loaded: LoadedModel) -> LayerGroups:
    """The page groups of the layers that this rank holds."""
    paged, size = _paged(loaded), config.block_size
    if config.hybrid_kv_cache:
        groups = page_groups(paged, size, build.dtype, build.codes)
    else:
        groups = one_group(paged, size)
    return held_groups(groups, loaded.kv_spec)


def _stages(config: Config, loaded: LoadedModel) -> int:
    """Stages that run steps at the same time."""
    watched = config.expert_stats_window or config.runtime_stats
    whole = loaded.recipe is not None and loaded.recipe.whole
    return 1 if watched or whole or not loaded.generates else config.pipeline_parallel_size


def _paged(loaded: LoadedModel) -> Decoder:
    """The layers whose KV is in pages, of all stages: these have the same groups."""
    return loaded.kv_spec if loaded.all_stages is None else loaded.all_stages


def _longest(config: Config, loaded: LoadedModel) -> int:
    """Tokens of the longest sequence that is asked for."""
    wanted = config.max_model_len or loaded.max_length
    if wanted > loaded.max_length:
        raise SettingsError(
            f"--max-model-len {wanted}: this model was trained for {loaded.max_length} tokens."
        )
    return wanted


def _speculative(config: Config, loaded: LoadedModel) -> SpeculativeConfig | None:
    speculative = parse(config.speculative_config)
    if speculative is not None and not loaded.generates:
        raise SettingsError("--speculative-config: this model makes no tokens. Leave it out.")
    if speculative is None or (drafter := loaded.drafter) is None:
        return speculative
    speculative = msgspec.structs.replace(speculative, method=drafter.method or speculative.method)
    check_tree(speculative, loaded, config)
    if drafter.most and len(speculative.tree.widths) > drafter.most:
        raise SettingsError(
            f"--speculative-config: this head drafts {drafter.most} tokens, and "
            f"num_speculative_tokens is {speculative.num_speculative_tokens}. Set it to "
            f"{drafter.most} or less."
        )
    return speculative


def _draft_page_bytes(loaded: LoadedModel, ranks: Communicator, device: torch.device) -> int:
    """Bytes for a page of drafts on all ranks together: the first has them, and of GPUs the one
    with least memory counts."""
    own = 0 if loaded.drafter is None else loaded.drafter.page_bytes
    return max(numbers(ranks, own, device)) * (ranks.size if device.type == "cuda" else 1)


def _batch_tokens(config: Config, loaded: LoadedModel, longest: int, on_cpu: bool) -> int:
    """Most tokens of a step, by default as many again as rows can decode. A text that is run whole
    is not cut to it, so it must hold the longest of them, or beside running sequences as long ones
    as it can."""
    whole = loaded.recipe is not None and loaded.recipe.whole
    usual = max(_ON_CPU if on_cpu and not whole else _ON_GPU, 2 * config.max_num_seqs)
    only_whole = whole and not loaded.generates
    return max(config.max_num_batched_tokens or usual, longest if only_whole else 0)


def _graphs(
    config: Config,
    device: torch.device,
    loaded: LoadedModel,
    max_model_len: int,
    max_num_batched_tokens: int,
) -> Sizes:
    if device.type != "cuda":
        # One size: a tape runs as many of its rows as it is told, of any length.
        rows = min(config.max_replay_rows, config.max_num_seqs)
        return Sizes(
            (rows,), max_model_len, min(max_num_batched_tokens, _TAPED, rows * max_model_len)
        )
    rows = min(config.max_cudagraph_capture_size, config.max_num_seqs)
    longest = config.max_seq_len_to_capture or max_model_len
    # A backend of attention that plans on the host has plans of decode steps alone.
    mixed = loaded.model.launch_blocker is None if isinstance(loaded.model, Model) else False
    tokens = max_num_batched_tokens if mixed else 0
    return Sizes.up_to(rows, min(longest, max_model_len), tokens)


def _pooling(loaded: LoadedModel, max_model_len: int, spare: int) -> PoolingInfo | None:
    """What is given in place of text. Whole texts beside running sequences must fit into what a
    step spares when all of these decode."""
    if loaded.recipe is None:
        return None
    if loaded.recipe.whole and loaded.generates:
        max_model_len = max(1, min(max_model_len, spare))
    return loaded.recipe.info(max_model_len, generates=loaded.generates)
