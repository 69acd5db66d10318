"""The spec of one rank's shard: fewer heads, narrower feed-forwards, fewer rows.

Megatron-LM's scheme (Shoeybi et al. 2019, arXiv:1909.08053): the input of a mixer or a feed-forward
is replicated, its output is summed over ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from baton.errors import SettingsError
from baton_worker import spec
from baton_worker.spec.expert_map import ExpertMap


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard `rank`, from 0, of `size`."""

    rank: int
    size: int
    placement: str | None = None
    """Expert placement, a key of `models.expert_map.PLACEMENTS`; None splits each expert."""
    context: int = 1
    """Neighbouring ranks that would hold the same KV and split its tokens instead."""
    redundant: int | None = None
    """Replicas of experts on all ranks together, of experts that are balanced: then every rank has
    as many. None: they are not."""

    def of(self, count: int, what: str) -> int:
        """An equal share of `count` items.

        Raises:
            SettingsError: `count` is not divisible.
        """
        if count % self.size:
            raise self.refusal(f"{count} {what} cannot be dealt out evenly")
        return count // self.size

    def first(self, mine: int, whole: int) -> int:
        """Start of this rank's part of length `mine` within a dimension of length `whole`.

        Parts are contiguous. With fewer parts than ranks, neighbouring ranks hold the same part; a
        part that would exceed `whole` is shortened.
        """
        parts = -(-whole // mine)
        return self.rank * parts // self.size * mine

    def tokens(self, num_kv_heads: int) -> spec.ContextShard | None:
        """The tokens whose KV this rank keeps; None: all.

        Raises:
            SettingsError: fewer than `context` neighbours hold the same of `num_kv_heads` KV heads.
        """
        if self.context == 1:
            return None
        alike = max(1, self.size // num_kv_heads)
        if alike % self.context:
            raise self.undivided(
                f"each of the {num_kv_heads} key heads is on {alike} of {self.size} ranks"
            )
        return spec.ContextShard(self.rank % self.context, self.context)

    def refusal(self, why: str) -> SettingsError:
        """The error for a part that cannot be sharded; `why` is half a sentence."""
        return SettingsError(
            f"--tensor-parallel-size {self.size}: {why}. Choose another number of ranks, or 1."
        )

    def undivided(self, why: str) -> SettingsError:
        """The error for KV that cannot be split by token; `why` is half a sentence."""
        return SettingsError(
            f"--decode-context-parallel-size {self.context}: {why}. Choose another number, or "
            "leave it out."
        )


def shard_spec(whole: spec.Decoder, share: Shard) -> spec.Decoder:
    """The spec of one rank's shard of a model.

    Raises:
        SettingsError: the model cannot be split, or not into this many shards.
    """
    if isinstance(whole, spec.Encoder):
        raise share.refusal("encoders are not cut; run more workers instead")
    if -(-whole.vocab // -(-whole.vocab // share.size)) != share.size:
        raise share.refusal(f"a vocabulary of {whole.vocab} has not enough rows")
    if share.placement is not None:
        _check_experts(whole)
    layers = tuple((_cut(mixer, share), _cut(ffn, share)) for mixer, ffn in whole.layers)
    if share.context > 1 and not any(getattr(mixer, "context", None) for mixer, _ in layers):
        raise share.undivided("no layer of this model keeps all tokens")
    # The last shard may have fewer rows; they are padded with zeros.
    rows = -(-whole.vocab // share.size)
    return replace(whole, layers=layers, vocab=rows, head=_head(whole, rows, share))


def _head(whole: spec.Decoder, rows: int, share: Shard) -> spec.Head:
    """The head's share of `rows`, of which the last may be among those that are never sampled."""
    if not whole.head.unsaid or share.size == 1:
        return whole.head
    num_sampled = whole.vocab - whole.head.unsaid
    if -(-num_sampled // rows) != share.size:
        raise share.refusal(f"a head of {num_sampled} rows leaves a rank without any")
    unsaid = max(0, (share.rank + 1) * rows - num_sampled)
    return replace(whole.head, unsaid=unsaid, filled=True)


def deal(whole: spec.Decoder, share: Shard) -> spec.Decoder:
    """The spec of an expert-parallel rank: a share of the experts, and everything else whole.

    Raises:
        SettingsError: there are no experts, or fewer than ranks.
    """
    _check_experts(whole)
    layers = tuple((mixer, _dealt_in(ffn, share)) for mixer, ffn in whole.layers)
    return replace(whole, layers=layers)


def _check_experts(whole: spec.Decoder) -> None:
    kinds = spec.Moe | spec.ShortcutMoe | spec.ModalityMoe
    if not any(isinstance(ffn, kinds) for _, ffn in whole.layers):
        raise SettingsError("--enable-expert-parallel: this model has no experts. Leave it out.")


def _cut(part: Any, share: Shard) -> Any:
    return None if part is None else _RULES[type(part)](part, share)


def _attention(whole: spec.Attention, share: Shard) -> spec.Attention:
    num_heads = share.of(whole.num_heads, "query heads")
    if whole.num_kv_heads % share.size and share.size % whole.num_kv_heads:
        raise share.refusal(
            f"{whole.num_kv_heads} key heads can neither be dealt out nor repeated evenly"
        )
    norm = whole.qk_norm
    if norm is not None and norm.over == "full" and norm.norm.kind != "rms":
        raise share.refusal("a norm over all heads is cut for root mean squares only")
    first = share.rank * num_heads
    slopes = whole.scores.slopes
    slopes = None if slopes is None else slopes[first : first + num_heads]
    num_kv_heads = max(1, whole.num_kv_heads // share.size)
    rope = whole.rope
    if isinstance(rope, spec.FourierRope):
        rope = replace(rope, num_heads=num_heads, num_kv_heads=num_kv_heads)
    return replace(
        whole,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        rope=rope,
        scores=replace(whole.scores, slopes=slopes),
        first_heads=(first, share.first(num_kv_heads, whole.num_kv_heads)),
        context=_tokens(whole, share),
    )


def _tokens(whole: spec.Attention, share: Shard) -> spec.ContextShard | None:
    """Layers with a short window keep all tokens on every rank."""
    if share.context == 1 or whole.mask != spec.Mask():
        return None
    if whole.scores.slopes is not None:
        raise share.undivided("ALiBi counts the tokens between two, and a rank has not all of them")
    if isinstance(whole, spec.DualChunkAttention):
        raise share.undivided("dual chunk attention has ranges of keys of its own")
    return share.tokens(whole.num_kv_heads)


def _cross(whole: spec.CrossAttention, share: Shard) -> spec.CrossAttention:
    """Each rank keeps the states' KV of its own heads. None aligns: it would need those of all."""
    num_heads = share.of(whole.num_heads, "query heads")
    if whole.num_kv_heads % share.size and share.size % whole.num_kv_heads:
        raise share.refusal(
            f"{whole.num_kv_heads} key heads can neither be dealt out nor repeated evenly"
        )
    num_kv_heads = max(1, whole.num_kv_heads // share.size)
    return replace(whole, num_heads=num_heads, num_kv_heads=num_kv_heads, alignment_heads=())


def _latent(whole: spec.LatentAttention, share: Shard) -> spec.LatentAttention:
    """Latents, and the index if there is one, are replicated: all heads share them."""
    num_heads = share.of(whole.num_heads, "query heads")
    if share.context > 1 and isinstance(whole, spec.SparseLatentAttention):
        raise share.undivided("an index chooses among all keys of a text")
    return replace(whole, num_heads=num_heads, context=share.tokens(1))


def _conv(whole: spec.ShortConv, share: Shard) -> spec.ShortConv:
    """Channels are independent until the output projection."""
    return replace(whole, channels=share.of(whole.channels, "channels of a convolution"))


def _linear(whole: spec.LinearAttention, share: Shard) -> spec.LinearAttention:
    num_heads = share.of(whole.num_heads, "heads")
    first = share.rank * num_heads
    return replace(whole, num_heads=num_heads, decays=whole.decays[first : first + num_heads])


def _delta(whole: spec.DeltaNet, share: Shard) -> spec.DeltaNet:
    """Value heads stay with their key head."""
    if whole.tiled_output:
        raise SettingsError(
            "A GGUF file of this model cannot be split over ranks: the channels of its output "
            "projections lie far apart. Use one rank, or the safetensors checkpoint."
        )
    num_key_heads = share.of(whole.num_key_heads, "key heads")
    num_heads = share.of(whole.num_heads, "value heads")
    norm = replace(whole.norm, groups=num_heads)
    return replace(whole, num_key_heads=num_key_heads, num_heads=num_heads, norm=norm)


def _state_space(whole: spec.StateSpace, share: Shard) -> spec.StateSpace:
    """Heads with their groups, or with the single shared group."""
    groups = 1 if whole.num_groups == 1 else share.of(whole.num_groups, "groups of heads")
    norm = whole.norm
    if norm is not None and norm.groups == 1:
        norm = replace(norm, cut=True)
    elif norm is not None:
        norm = replace(norm, groups=share.of(norm.groups, "groups of a norm"))
    heads = share.of(whole.num_heads, "heads")
    return replace(whole, num_heads=heads, num_groups=groups, norm=norm)


def _selective(whole: spec.SelectiveStateSpace, share: Shard) -> spec.SelectiveStateSpace:
    """Heads are sharded; the projection to time steps, B and C is summed over ranks."""
    return replace(whole, num_heads=share.of(whole.num_heads, "heads"))


def _mamba(whole: spec.Mamba, share: Shard) -> spec.Mamba:
    """Channels are sharded; the projection to time steps, B and C is summed over ranks."""
    return replace(whole, channels=share.of(whole.channels, "channels of a state space"))


def _dense(whole: Any, share: Shard) -> Any:
    """A feed-forward of any kind."""
    size = share.of(whole.intermediate, "channels of a feed-forward")
    return replace(whole, intermediate=size)


def _moe(whole: spec.Moe, share: Shard) -> spec.Moe:
    """A slice of every expert, or whole experts; the router is replicated."""
    shared = None if whole.shared is None else _dense(whole.shared, share)
    if share.placement is not None:
        return replace(_dealt(whole, share), shared=shared)
    passes = whole.passes and share.rank == 0
    return replace(whole, expert=_dense(whole.expert, share), shared=shared, passes=passes)


def _dealt(whole: spec.Moe, share: Shard) -> spec.Moe:
    """A share of the experts, each of them whole."""
    assert share.placement is not None
    num_experts = whole.router.num_experts
    redundant = share.redundant or 0
    if share.redundant is not None and (num_experts + redundant) % share.size:
        raise SettingsError(
            f"--enable-eplb: {num_experts} experts and {redundant} redundant ones cannot be dealt "
            f"out evenly to {share.size} ranks. Change num_redundant_experts in --eplb-config, or "
            "the number of ranks."
        )
    dealt = ExpertMap.placed(share.placement, num_experts, share.rank, share.size, redundant)
    return replace(whole, dealt=dealt, passes=whole.passes and share.rank == 0)


def _dealt_in(ffn: spec.Ffn | None, share: Shard) -> spec.Ffn | None:
    if isinstance(ffn, spec.Moe):
        return _dealt(ffn, share)
    if isinstance(ffn, spec.ShortcutMoe):
        return replace(ffn, branch=_dealt(ffn.branch, share))
    if isinstance(ffn, spec.ModalityMoe):
        return spec.ModalityMoe(_dealt(ffn.text, share), _dealt(ffn.vision, share))
    return ffn


def _forked(whole: spec.ShortcutMoe, share: Shard) -> spec.ShortcutMoe:
    return replace(whole, dense=_dense(whole.dense, share), branch=_moe(whole.branch, share))


def _by_modality(whole: spec.ModalityMoe, share: Shard) -> spec.ModalityMoe:
    return spec.ModalityMoe(_moe(whole.text, share), _moe(whole.vision, share))


_RULES: dict[type, Callable[..., Any]] = {
    spec.Attention: _attention,
    spec.CrossAttention: _cross,
    spec.DualChunkAttention: _attention,
    spec.NormedValueAttention: _attention,
    spec.KeyAsValueAttention: _attention,
    spec.KVReuse: _attention,
    spec.KVSharingSource: _attention,
    spec.KVSharingTarget: _attention,
    spec.SharedAttention: _attention,
    spec.LatentAttention: _latent,
    spec.SparseLatentAttention: _latent,
    spec.ShortConv: _conv,
    spec.LinearAttention: _linear,
    spec.DeltaNet: _delta,
    spec.StateSpace: _state_space,
    spec.SelectiveStateSpace: _selective,
    spec.Mamba: _mamba,
    spec.Glu: _dense,
    spec.SparseGlu: _dense,
    spec.SharedGlu: _dense,
    spec.Mlp: _dense,
    spec.XieluMlp: _dense,
    spec.Moe: _moe,
    spec.ShortcutMoe: _forked,
    spec.ParallelMoe: _forked,
    spec.ModalityMoe: _by_modality,
}
