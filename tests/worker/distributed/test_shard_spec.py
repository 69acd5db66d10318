"""The spec of a part, and what has none."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from baton.errors import SettingsError
from baton_worker import spec
from baton_worker.distributed.shard_spec import Shard, deal, shard_spec
from baton_worker.spec.expert_map import ExpertMap

HEADS = spec.Attention(8, 4, 16, 0.25, rope=None)
MLP = spec.Mlp(48)
EXPERT = spec.Glu(24)
ROUTER = spec.Router(8, 2, zero_experts=2)
NORM = spec.Norm(1e-5)


def decoder(mixer: Any = HEADS, ffn: Any = MLP, vocab: int = 96) -> spec.Decoder:
    return spec.Decoder(64, vocab, ((mixer, ffn), (None, None)), NORM, spec.Head())


def part(whole: spec.Decoder, rank: int = 0, size: int = 2) -> Any:
    return shard_spec(whole, Shard(rank, size))


@pytest.mark.parametrize(("size", "kept"), [(2, 2), (4, 1), (8, 1)])
def test_key_heads_are_dealt_out_and_then_repeated(size: int, kept: int) -> None:
    mixer, ffn = part(decoder(), size=size).layers[0]
    assert (mixer.num_heads, mixer.num_kv_heads, mixer.head_dim) == (8 // size, kept, 16)
    assert ffn == spec.Mlp(48 // size)


def test_a_part_knows_which_heads_of_the_checkpoint_it_has() -> None:
    whole = decoder(replace(HEADS, num_kv_heads=2))
    found = [part(whole, rank, 4).layers[0][0].first_heads for rank in range(4)]
    assert found == [(0, 0), (2, 0), (4, 1), (6, 1)]


def test_nothing_is_cut_off_nothing() -> None:
    assert part(decoder()).layers[1] == (None, None)
    whole = replace(decoder(), head=spec.Head(unsaid=4))
    assert part(whole, size=1) == whole


def test_the_last_parts_have_the_tokens_that_are_never_sampled() -> None:
    """A part of 8 rows may be longer than what is left of the vocabulary."""
    whole = replace(decoder(), vocab=30, head=spec.Head(unsaid=4))
    heads = [part(whole, rank, 4).head for rank in range(4)]
    assert [head.unsaid for head in heads] == [0, 0, 0, 6] and all(head.filled for head in heads)
    with pytest.raises(SettingsError, match="leaves a rank without any"):
        part(replace(whole, head=spec.Head(unsaid=7)), size=4)


def test_slopes_go_with_their_heads() -> None:
    slopes = tuple(float(head) for head in range(8))
    whole = decoder(replace(HEADS, scores=spec.Scores(slopes=slopes)))
    found = [part(whole, rank, 4).layers[0][0].scores.slopes for rank in range(4)]
    assert found == [(0.0, 1.0), (2.0, 3.0), (4.0, 5.0), (6.0, 7.0)]


def test_latents_stay_whole() -> None:
    rope = spec.Rope(4, 1e4, 64)
    latent = spec.LatentAttention(8, 12, 8, 4, 8, 1.0, rope, NORM, query_rank=6)
    assert part(decoder(latent)).layers[0][0] == replace(latent, num_heads=4)


@pytest.mark.row("F04.26")
def test_an_index_stays_whole() -> None:
    """Every rank chooses the same keys for all heads, also for those that it does not have."""
    rope = spec.Rope(4, 1e4, 64)
    heads = (8, 12, 8, 4, 8, 1.0, rope, NORM, 6)
    sparse = spec.SparseLatentAttention(*heads, top_k=9, indexer=spec.Indexer(5, 7, NORM))
    assert part(decoder(sparse)).layers[0][0] == replace(sparse, num_heads=4)


def test_every_expert_is_cut_and_zero_experts_answer_once() -> None:
    moe = spec.Moe(ROUTER, EXPERT, shared=spec.Glu(32))
    first, second = (part(decoder(ffn=moe), rank).layers[0][1] for rank in range(2))
    assert first == spec.Moe(ROUTER, spec.Glu(12), shared=spec.Glu(16))
    assert second == replace(first, passes=False)
    forked = part(decoder(ffn=spec.ShortcutMoe(spec.Glu(32), moe)), 1).layers[0][1]
    assert forked == spec.ShortcutMoe(spec.Glu(16), second)
    mixed = part(decoder(ffn=spec.ModalityMoe(moe, replace(moe, shared=None))), 1).layers[0][1]
    assert mixed == spec.ModalityMoe(second, replace(second, shared=None))


@pytest.mark.row("F06.20")
def test_experts_may_be_dealt_out_whole() -> None:
    """What every token visits is cut all the same; with `deal` nothing else is."""
    moe = spec.Moe(ROUTER, EXPERT, shared=spec.Glu(32))
    whole, share = decoder(ffn=spec.ShortcutMoe(spec.Glu(32), moe)), Shard(1, 2, "round_robin")
    dealt = ExpertMap(((0, 2, 4, 6), (1, 3, 5, 7)), 1)
    mixer, ffn = shard_spec(whole, share).layers[0]
    branch = replace(moe, shared=spec.Glu(16), dealt=dealt, passes=False)
    assert mixer.num_heads == 4 and ffn == spec.ShortcutMoe(spec.Glu(16), branch)
    branch = replace(moe, dealt=dealt, passes=False)
    layers = ((HEADS, spec.ShortcutMoe(spec.Glu(32), branch)), (None, None))
    assert deal(whole, share) == replace(whole, layers=layers)
    assert deal(decoder(ffn=moe), Shard(0, 2, "linear")).layers[0][1].passes  # type: ignore[union-attr]


@pytest.mark.parametrize("divide", [shard_spec, deal])
def test_experts_that_cannot_be_dealt_out_are_refused(divide: Any) -> None:
    with pytest.raises(SettingsError, match="this model has no experts"):
        divide(decoder(), Shard(0, 2, "linear"))
    few = spec.Moe(spec.Router(3, 2), spec.Glu(24))
    with pytest.raises(SettingsError, match="3 experts cannot be dealt out to 4 ranks"):
        divide(decoder(ffn=few), Shard(0, 4, "linear"))
    for redundant, placement, why in (
        (2, "linear", "3 experts and 2 redundant ones cannot be dealt out evenly to 2 ranks"),
        (5, "linear", "a rank would hold one of them twice. 3 are possible on 2 ranks"),
        (1, "round_robin", "redundant experts are placed by load"),
    ):
        with pytest.raises(SettingsError, match=re.escape(why)):
            divide(decoder(ffn=few), Shard(0, 2, placement, redundant=redundant))
    dealt = deal(decoder(ffn=few), Shard(1, 2, "linear", redundant=1)).layers[0][1].dealt
    assert dealt == ExpertMap(((0, 1), (2, 0)), 1)


ONE_KEY = replace(HEADS, num_kv_heads=1)


@pytest.mark.row("F14.10")
def test_neighbours_with_the_same_keys_have_a_part_of_the_tokens_each() -> None:
    latent = spec.LatentAttention(8, 12, 8, 4, 8, 1.0, None, NORM)
    for mixer, size in ((replace(HEADS, num_kv_heads=2), 4), (ONE_KEY, 4), (latent, 2)):
        parts = [shard_spec(decoder(mixer), Shard(rank, size, context=2)) for rank in range(size)]
        found: list[Any] = [whole.layers[0][0] for whole in parts]
        assert [part.context for part in found] == [(0, 2), (1, 2)] * (size // 2)
    for few in (
        replace(ONE_KEY, mask=spec.Mask(window=8)),
        replace(ONE_KEY, mask=spec.Mask(chunk=8)),
    ):
        whole = replace(decoder(), layers=((few, MLP), (ONE_KEY, MLP)))
        mixers: list[Any] = [mixer for mixer, _ in shard_spec(whole, Shard(1, 2, context=2)).layers]
        assert [mixer.context for mixer in mixers] == [None, (1, 2)], "what is few is not divided"


@pytest.mark.row("F14.10")
@pytest.mark.parametrize(
    ("mixer", "context", "why"),
    [
        (HEADS, 2, "each of the 4 key heads is on 1 of 4 ranks"),
        (replace(HEADS, num_kv_heads=2), 4, "each of the 2 key heads is on 2 of 4 ranks"),
        (replace(ONE_KEY, mask=spec.Mask(window=8)), 2, "no layer of this model keeps all tokens"),
        (spec.ShortConv(64, 3), 2, "no layer of this model keeps all tokens"),
        (
            replace(ONE_KEY, scores=spec.Scores(slopes=(0.5,) * 8)),
            2,
            "ALiBi counts the tokens between two",
        ),
    ],
)
def test_tokens_that_cannot_be_divided_are_refused(mixer: Any, context: int, why: str) -> None:
    with pytest.raises(SettingsError) as error:
        shard_spec(decoder(mixer), Shard(0, 4, context=context))
    assert error.value.message.startswith(f"--decode-context-parallel-size {context}: {why}")
    assert error.value.message.endswith("Choose another number, or leave it out.")


@pytest.mark.parametrize(("vocab", "size", "rows"), [(96, 2, 48), (97, 2, 49), (50257, 4, 12565)])
def test_the_last_part_of_a_vocabulary_is_padded(vocab: int, size: int, rows: int) -> None:
    assert part(decoder(vocab=vocab), size - 1, size).vocab == rows


def test_a_share_begins_where_the_one_before_it_ends() -> None:
    assert [Shard(rank, 4).first(2, 8) for rank in range(4)] == [0, 2, 4, 6]
    assert [Shard(rank, 4).first(5, 10) for rank in range(4)] == [0, 0, 5, 5]
    assert [Shard(rank, 3).first(4, 10) for rank in range(3)] == [0, 4, 8]


@pytest.mark.parametrize(
    ("whole", "size", "why"),
    [
        (decoder(), 3, "8 query heads cannot be dealt out evenly"),
        (decoder(replace(HEADS, num_heads=12, num_kv_heads=4)), 6, "4 key heads can neither be"),
        (decoder(ffn=spec.Mlp(50)), 4, "50 channels of a feed-forward cannot"),
        (decoder(ffn=spec.Moe(ROUTER, spec.Glu(25))), 2, "25 channels of a feed-forward cannot"),
        (decoder(vocab=5), 4, "a vocabulary of 5 has not enough rows"),
        (
            decoder(replace(HEADS, qk_norm=spec.QkNorm(spec.Norm(1e-5, "layer"), over="full"))),
            2,
            "a norm over all heads is cut for root mean squares only",
        ),
        (
            spec.Encoder(64, 96, ((HEADS, MLP),), NORM, spec.Head()),
            2,
            "encoders are not cut; run more workers instead",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused(whole: spec.Decoder, size: int, why: str) -> None:
    with pytest.raises(SettingsError) as error:
        part(whole, size=size)
    assert error.value.message.startswith(f"--tensor-parallel-size {size}: {why}")
    assert error.value.message.endswith("Choose another number of ranks, or 1.")


def test_channels_of_a_convolution_are_dealt_out() -> None:
    mixer, _ = part(decoder(spec.ShortConv(48, 3, bias=True)), rank=1).layers[0]
    assert mixer == spec.ShortConv(24, 3, bias=True)
    with pytest.raises(SettingsError, match="50 channels of a convolution cannot be dealt out"):
        part(decoder(spec.ShortConv(50, 3)), size=4)


def test_heads_of_delta_nets_go_with_the_heads_of_keys_that_serve_them() -> None:
    norm = spec.GatedNorm(1e-6, 8, gate_first=False, shared=True)
    whole = spec.DeltaNet(4, 8, 6, 10, 4, norm)
    mixer, _ = part(decoder(whole), rank=1).layers[0]
    assert mixer == spec.DeltaNet(2, 4, 6, 10, 4, replace(norm, groups=4))
    with pytest.raises(SettingsError, match="4 key heads cannot be dealt out evenly"):
        part(decoder(whole), size=8)
    with pytest.raises(SettingsError, match="4 value heads cannot be dealt out evenly"):
        part(decoder(replace(whole, num_key_heads=6, num_heads=4)), size=3)
    with pytest.raises(SettingsError, match="A GGUF file of this model cannot be split"):
        part(decoder(replace(whole, tiled_output=True)))


@pytest.mark.parametrize(("groups", "parts", "cut"), [(4, 2, False), (1, 1, True)])
def test_heads_of_a_state_space_go_with_their_groups(groups: int, parts: int, cut: bool) -> None:
    """Or with the one that all have; then the norm is over the channels of all ranks."""
    whole = spec.StateSpace(8, 4, groups, 16, 4, spec.GatedNorm(1e-6, groups))
    mixer, _ = part(decoder(whole), rank=1).layers[0]
    norm = spec.GatedNorm(1e-6, parts, cut=cut)
    assert mixer == spec.StateSpace(4, 4, parts, 16, 4, norm)
    with pytest.raises(SettingsError, match=r"groups of heads cannot|8 heads cannot"):
        part(decoder(whole), size=3)


def test_channels_of_a_state_space_are_dealt_out() -> None:
    mixer, _ = part(decoder(spec.Mamba(48, 5, 3, 4)), rank=1).layers[0]
    assert mixer == spec.Mamba(24, 5, 3, 4)
    with pytest.raises(SettingsError, match="50 channels of a state space cannot be dealt out"):
        part(decoder(spec.Mamba(50, 5, 3, 4)), size=4)


def test_heads_of_linear_attention_keep_their_decays() -> None:
    whole = spec.LinearAttention(4, 8, (0.4, 0.3, 0.2, 0.1), NORM)
    found = [part(decoder(whole), rank).layers[0][0] for rank in range(2)]
    assert [(mixer.num_heads, mixer.decays) for mixer in found] == [
        (2, (0.4, 0.3)),
        (2, (0.2, 0.1)),
    ]
    with pytest.raises(SettingsError, match="4 heads cannot be dealt out evenly"):
        part(decoder(whole), size=3)
