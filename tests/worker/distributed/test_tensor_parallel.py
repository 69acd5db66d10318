"""What is put around a part: two ranks, as threads of this process, give what one gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.distributed.shard_spec import Shard, shard_spec
from baton_worker.distributed.tensor_parallel import (
    AllGathered,
    AllReduced,
    SharedRows,
    WideNorm,
    shard_modules,
)
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Embedding, Table
from baton_worker.layers.linear import Linear
from baton_worker.layers.lm_head import Head
from baton_worker.layers.norm import RmsNorm
from baton_worker.models.build import build
from tests.fakes.threaded_ranks import together

SITE = BuildContext(torch.device("cpu"), torch.float32, lambda role: role)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Half(nn.Module):
    """A part that reads the columns of its rank."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor, residual: Tensor | None) -> Tensor:
        y = x @ self.weight.T
        return y if residual is None else y + residual


def test_a_sum_has_its_residual_once() -> None:
    x, residual, weight = numbers(3, 8), numbers(3, 5, seed=1), numbers(5, 8, seed=2)

    def part(ranks: Any) -> Tensor:
        columns = slice(4 * ranks.rank, 4 * ranks.rank + 4)
        summed: Tensor = AllReduced(Half(weight[:, columns]), ranks)(x[:, columns], residual)
        return summed

    for found in together(2, part):
        torch.testing.assert_close(found, x @ weight.T + residual)


@pytest.mark.row("F14.04")
@pytest.mark.parametrize(("vocab", "size"), [(12, 2), (13, 2), (13, 3)])
def test_rows_are_found_wherever_they_are(vocab: int, size: int) -> None:
    whole, rows = numbers(vocab, 6), -(-vocab // size)
    wanted = torch.tensor([0, vocab - 1, rows, rows - 1, 3])

    def part(ranks: Any) -> Tensor:
        table, first = Table(rows, 6, "embedding", SITE), rows * ranks.rank
        mine = whole[first : first + rows]
        assert table.weight is not None
        table.weight.zero_()[: len(mine)] = mine
        found: Tensor = SharedRows(table, first, rows, ranks)(wanted)
        return found

    for found in together(size, part):
        assert torch.equal(found, whole[wanted])


@pytest.mark.row("F14.04")
@pytest.mark.parametrize(("vocab", "size"), [(12, 2), (13, 2), (13, 3)])
def test_logits_are_gathered_without_the_padding(vocab: int, size: int) -> None:
    settings = spec.Head(bias=True, scale=0.5, softcap=2.0)
    weight, bias, x = numbers(vocab, 6), numbers(vocab, seed=1), numbers(4, 6, seed=2)
    rows = -(-vocab // size)

    def head(rows: int, first: int) -> Head:
        made = Head(settings, 6, rows, SITE)
        assert made.weight is not None and made.logit_bias is not None
        for own, all_of_it in ((made.weight, weight), (made.logit_bias, bias)):
            mine = all_of_it[first : first + rows]
            own.zero_()[: len(mine)] = mine
        return made

    def part(ranks: Any) -> Tensor:
        gathered: Tensor = AllGathered(head(rows, rows * ranks.rank), vocab, ranks)(x)
        return gathered

    expected = head(vocab, 0)(x)
    for found in together(size, part):
        assert found.shape == (4, vocab)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("repeated", [False, True])
def test_a_norm_over_all_heads_sees_those_of_other_ranks(repeated: bool) -> None:
    """Also where both ranks have the same heads."""
    x, weight, settings = numbers(5, 16), numbers(16, seed=1), spec.Norm(1e-2)

    def norm(weight: Tensor) -> RmsNorm:
        made = RmsNorm(settings, len(weight), "key_norm", SITE)
        assert made.weight is not None
        made.weight.copy_(weight)
        return made

    def part(ranks: Any) -> Tensor:
        mine = slice(None) if repeated else slice(8 * ranks.rank, 8 * ranks.rank + 8)
        normed: Tensor = WideNorm(norm(weight[mine]), ranks)(x[:, mine])
        return normed

    found = together(2, part)
    for whole in found if repeated else [torch.cat(found, -1)]:
        torch.testing.assert_close(whole, norm(weight)(x))


def test_a_model_is_wrapped_from_outside() -> None:
    """No layer is changed: modules stand around mixers, feed-forwards, wide norms, table, head."""
    heads = spec.Attention(
        4, 2, 8, 1.0, rope=None, qk_norm=spec.QkNorm(spec.Norm(1e-5), over="full")
    )
    glu, moe = spec.Glu(8), spec.Moe(spec.Router(4, 2), spec.Glu(8))
    layers = ((heads, spec.ShortcutMoe(glu, moe)), (heads, glu))
    whole = spec.Decoder(16, 10, layers, spec.Norm(1e-5), spec.Head(tied=True), style="shortcut")

    def part(ranks: Any) -> Any:
        device = torch.device("cpu")
        share = Shard(ranks.rank, ranks.size)
        model = build(shard_spec(whole, share), BuildContext(device, torch.float32))
        before = [type(layer) for layer in model.layers()]
        shard_modules(model, whole.vocab, ranks)
        assert [type(layer) for layer in model.layers()] == before
        return model

    for model in together(2, part):
        first, second = model.blocks
        assert isinstance(first.mixer, AllReduced) and isinstance(second.ffn, AllReduced)
        assert isinstance(first.ffn.dense, AllReduced) and isinstance(first.ffn.branch, AllReduced)
        assert isinstance(first.mixer.part.key_norm, WideNorm)
        assert isinstance(model.embedding, Embedding) and isinstance(model.head, AllGathered)
        assert isinstance(model.embedding.tokens, SharedRows)
        assert isinstance(second.mixer.part.output, Linear)
