"""The layout of packed weights, against what the checkpoint's own formats mean."""

from __future__ import annotations

import pytest
import torch

from baton.errors import ModelError
from baton_worker.kernels import packed_weights
from baton_worker.kernels.fp8 import Inputs
from baton_worker.kernels.packed_weights import alike, pack, stacked, unpack, words_of
from tests.support.worker import packable_weights

CPU = torch.device("cpu")


def test_a_word_has_one_code_of_each_run_of_channels() -> None:
    for bits in (4, 8):
        codes = torch.randint(0, 1 << bits, (3, 300), dtype=torch.uint8)
        words = words_of(codes, bits)
        assert words.shape == (3 * 4 * bits, 3) and words.dtype is torch.int32
        run = 4 * bits
        word = int(words[run + 5, 2]) & 0xFFFFFFFF  # The second tile's, of the last column.
        each = [int(codes[2, 128 + i * run + 5]) for i in range(32 // bits)]
        assert [word >> i * bits & (1 << bits) - 1 for i in range(32 // bits)] == each
        assert torch.equal(unpack(words[None], bits)[0, :, :300], codes)


@pytest.mark.row("F21.07", "F03.02")
def test_packed_weights_are_the_same_numbers() -> None:
    every = packable_weights.each(48, 160)
    for name, weight in every.items():
        assert packed_weights.refuses(weight) is None, name
        packed = pack([weight], CPU)
        assert packed.shape == (1, 48, 160), name
        assert torch.equal(packed.dequantise()[0], weight.dequantise()), name
        assert packed.nbytes < 2 * weight.nbytes, name
        # Rows of several parts, and of several experts.
        fused = pack([weight, weight[:16]], CPU)
        both = torch.cat([weight.dequantise(), weight[:16].dequantise()])
        assert torch.equal(fused.dequantise()[0], both), name
        experts = stacked(iter([packed, packed]), 2)
        assert torch.equal(experts.dequantise(), both[:48].expand(2, 48, 160)), name
        assert torch.equal(experts.to(CPU).dequantise(), experts.dequantise()), name
        same = [other for other, given in every.items() if alike(weight, given)]
        assert same == [name], "only formats that are the same have a common layout"


@pytest.mark.row("F21.07")
def test_what_is_cut_for_several_ranks_is_packed() -> None:
    for group in (32, 64):
        weight = packable_weights.gptq(4, 32, 256, group).columns(128, 128)
        assert packed_weights.refuses(weight) is None
        assert torch.equal(pack([weight], CPU).dequantise()[0], weight.dequantise())


def test_what_has_no_layout_is_refused() -> None:
    refuses = packed_weights.refuses
    assert "3 bits have another kernel" in str(refuses(packable_weights.gptq(3, 32, 64, 32)))
    odd = packable_weights.gptq(4, 32, 128, 32, order=True).columns(0, 64)
    assert "of several sizes" in str(refuses(odd))
    assert "groups of 48" in str(refuses(packable_weights.fp8(48, 96, (48, 48), Inputs(48))))
    assert "groups of 16" in str(refuses(packable_weights.fp8(32, 64, (1, 64), Inputs(16))))
    assert "no layout" in str(refuses(torch.ones(1)))  # type: ignore[arg-type]
    one, other = packable_weights.mxfp4(16, 64), packable_weights.nvfp4(16, 64)
    with pytest.raises(ValueError, match="several formats"):
        pack([one, other], CPU)
    damaged = packable_weights.fp8(16, 64, (1, 64))
    damaged.codes.view(torch.uint8)[3, 5] = 0x7F
    with pytest.raises(ModelError, match="damaged"):
        pack([damaged], CPU)
