"""Settings resolved against device and model: every "auto" has become a value."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from baton.errors import SettingsError
from baton.protocol import PoolingInfo
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Config
from baton_worker.device_keeper.messages import Found
from baton_worker.distributed.communicator import Communicator, SingleRank
from baton_worker.distributed.step_sync import StepSync
from baton_worker.engine.async_scheduling.policy import refuses as synchronous
from baton_worker.engine.memory_profile import MemoryProfile
from baton_worker.engine.sizing import Sizing, StepLimits, layer_groups
from baton_worker.engine.speculation.tree_support import check_tree
from baton_worker.graphs import Sizes, refuses
from baton_worker.kernels.page_layout import Layout
from baton_worker.kv_cache import LayerGroups
from baton_worker.kv_cache.kept_pages import PageKeeper
from baton_worker.layers.build_context import BuildContext
from baton_worker.platform.device_memory import DeviceMemory
from baton_worker.speculative.config import SpeculativeConfig, parse

_ALIKE = LayerGroups((0,), (), ())


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The resolved settings of an engine."""

    build: BuildContext
    """The build context of the model's layers."""
    num_pages: int
    page_size: int
    page_bytes: int
    """Bytes of a page of the target."""
    draft_page_bytes: int
    """Bytes of a page of the drafter, which has `num_pages` pages too."""
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int
    weight_bytes: int
    eos_ids: tuple[int, ...]
    pooling: PoolingInfo | None = None
    """Outputs of a pooling model; None for a model that generates text."""
    alignment: bool = False
    """Whether the times of tokens in a recording can be returned."""
    host_pages: int = 0
    """Pages in host memory, in addition to `num_pages`."""
    encoder_cache_bytes: int = 0
    """Bytes for the embeddings of media; 0 for a model of text only."""
    groups: LayerGroups = _ALIKE
    """Groups of layers with one block table each; a page belongs to one group."""
    ranks: int = 1
    """Processes that hold a part of the model each; byte counts are sums over them."""
    stages: int = 1
    """Pipeline stages that run different steps at the same time; 1: one step after the other."""
    context: int = 1
    """Ranks that divide the tokens of a page between them."""
    graphs: Sizes | None = None
    """Sizes of captured steps; None if no step is captured."""
    eager: str = ""
    """Reason why no step is captured, as half a sentence; "" if steps are."""
    exact: bool = False
    """On a GPU: whether the numbers of a token depend only on its own sequence."""
    checkpoint_files: bytes = b""
    """Digest of `file_stats` when the checkpoint was loaded. Pages that a worker left are those of
    its weights: one that has loaded other files does not take them over."""
    synchronous: str = "it is not asked for"
    """Why each step is read before the next one is launched, as half a sentence; "" if it is
    not."""
    speculative: SpeculativeConfig | None = None
    """Parameters of speculative decoding; None without it."""
    profile: MemoryProfile = field(default_factory=MemoryProfile)
    """GPU memory of steps and graphs."""
    pages: PageKeeper | None = None
    """Keeper of the memory of pages, which outlives the worker; None without one."""

    @property
    def kv_bytes(self) -> int:
        """Bytes of all pages, with those of the drafter."""
        return self.num_pages * (self.page_bytes + self.draft_page_bytes)

    @property
    def spare_pages(self) -> int:
        """Pages beyond `num_pages`, one per group, for KV that no sequence keeps."""
        needed = self.graphs is not None or self.context > 1 or self.pages is not None
        return len(self.groups.windows) if needed else 0

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
        """The guarantee of failover."""
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
        pages: leases memory for pages. If an earlier worker left some, their number is used again
            and no memory is measured.

    Raises:
        SettingsError: `max_model_len` exceeds the model's, or no page fits.
    """
    ranks = SingleRank() if ranks is None else ranks
    sizing = Sizing(config, build, loaded, ranks, memory, layer_groups(config, build, loaded))
    limits, page_bytes = sizing.limits(), sizing.page_bytes()
    # The memory that is left can be measured once all have loaded: this is where they wait.
    weight_bytes = sizing.weight_bytes()
    eager = refuses(config, build.device, loaded, ranks.size)
    pages = pages if page_bytes.target else None
    leased = Found() if pages is None else pages.found()
    profile = MemoryProfile()
    if page_bytes.target and not leased.num_pages:
        profile = sizing.profile(limits, lockstep, None if eager else sizing.graphs(limits))
    budget = sizing.budget(limits, page_bytes, leased, profile)
    limits = limits._replace(max_model_len=budget.max_model_len)
    return EngineConfig(
        build=build,
        num_pages=budget.num_pages,
        page_size=config.block_size,
        page_bytes=page_bytes.target,
        draft_page_bytes=page_bytes.draft,
        **limits._asdict(),
        vocab_size=loaded.vocab_size,
        weight_bytes=weight_bytes,
        ranks=ranks.size,
        stages=_stages(config, loaded),
        context=config.decode_context_parallel_size,
        eos_ids=loaded.eos_token_ids,
        pooling=_pooling(loaded, limits),
        # Other ranks and stages keep the attention of their own heads and layers.
        alignment=ranks.size == 1 and loaded.spec.alignment_filter > 0,
        encoder_cache_bytes=sizing.encoder_cache_bytes,
        host_pages=config.host_cache_bytes // page_bytes.target if page_bytes.target else 0,
        groups=sizing.groups,
        graphs=None if eager else sizing.graphs(limits),
        eager=eager or "",
        exact=config.exact and not sizing.on_cpu,
        synchronous=synchronous(config, build.device, loaded, build.sampler) or "",
        profile=profile,
        pages=pages,
        speculative=_speculative(config, loaded),
    )


def _stages(config: Config, loaded: LoadedModel) -> int:
    """Stages that run steps at the same time."""
    watched = config.expert_stats_window or config.runtime_stats
    whole = loaded.recipe is not None and loaded.recipe.whole
    return 1 if watched or whole or not loaded.generates else config.pipeline_parallel_size


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


def _pooling(loaded: LoadedModel, limits: StepLimits) -> PoolingInfo | None:
    """What is given in place of text. Whole texts beside running sequences must fit into what a
    step spares when all of these decode."""
    if loaded.recipe is None:
        return None
    longest = limits.max_model_len
    if loaded.recipe.whole and loaded.generates:
        spare = limits.max_num_batched_tokens - limits.max_num_seqs
        longest = max(1, min(longest, spare))
    return loaded.recipe.info(longest, generates=loaded.generates)
