"""The attention function that transformers calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton.errors import ModelError
from baton_worker.attention import AttentionBatch
from baton_worker.attention.selector import AttentionSelector
from baton_worker.attention.transformers_hook import (
    CallRecorder,
    PagedHandler,
    attend,
    attention_handler,
)

CPU = torch.device("cpu")
LAYER = nn.Identity()


def heads(num_heads: int, length: int, dim: int, seed: int) -> Tensor:
    return torch.randn(1, num_heads, length, dim, generator=torch.Generator().manual_seed(seed))


def problem(length: int = 6, value_dim: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    return heads(4, length, 8, 0), heads(2, length, 8, 1), heads(2, length, value_dim, 2)


def dense(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    return attended.transpose(1, 2)


def test_a_survey_writes_down_every_call() -> None:
    recorder, (query, key, value) = CallRecorder(), problem()
    with attention_handler(recorder):
        attend(LAYER, query, key, value, None, scaling=0.5, sliding_window=3)
        out, nothing = attend(LAYER, query, key, value, None, softcap=2.0)
    assert out.shape == (1, 6, 4, 8) and nothing is None
    first, second = recorder.calls
    assert (first.num_heads, first.num_kv_heads, first.head_dim) == (4, 2, 8)
    assert (first.scale, first.window, first.softcap) == (0.5, 3, None)
    assert (second.scale, second.window, second.softcap) == (8**-0.5, None, 2.0)


@pytest.mark.parametrize("value_dim", [8, 5])
def test_pages_answer_as_dense_attention_does(value_dim: int) -> None:
    query, key, value = problem(value_dim=value_dim)
    recorder, selector = CallRecorder(), AttentionSelector()
    with attention_handler(recorder):
        attend(LAYER, query, key, value, None, scaling=0.3)
    pages, answers = torch.zeros(3, 4, 2, 2, 8), list[Tensor]()
    for start, end in ((0, 4), (4, 6)):
        batch = AttentionBatch.build([end - start], [start], [[2, 0]], 4, CPU)
        with attention_handler(PagedHandler(batch, recorder.calls, [pages], [0], selector)):
            part = (x[:, :, start:end] for x in (query, key, value))
            answers.append(attend(LAYER, *part, None, scaling=0.3)[0])
    expected = dense(query, key, value, 0.3)
    torch.testing.assert_close(torch.cat(answers, dim=1), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("mask", "others", "module", "named"),
    [
        (torch.zeros(1), {}, LAYER, "a mask of its own"),
        (None, {"position_bias": torch.zeros(1)}, LAYER, "position_bias"),
        (None, {"is_causal": False}, LAYER, "attention to later tokens"),
        (None, {}, SimpleNamespace(is_causal=False), "attention to later tokens"),
    ],
)
def test_what_pages_cannot_do_is_refused(
    mask: Tensor | None, others: dict[str, Any], module: Any, named: str
) -> None:
    with pytest.raises(ModelError, match=named), attention_handler(CallRecorder()):
        attend(module, *problem(), mask, **others)


def test_sinks_take_part_in_the_softmax() -> None:
    query, key, value = problem()
    recorder, sinks = CallRecorder(), torch.tensor([0.5, -1.0, 2.0, 0.0])
    with attention_handler(recorder):
        attend(LAYER, query, key, value, None, scaling=0.3, s_aux=sinks)
    batch, pages = AttentionBatch.build([6], [0], [[1, 0]], 4, CPU), torch.zeros(2, 4, 2, 2, 8)
    with attention_handler(PagedHandler(batch, recorder.calls, [pages], [0], AttentionSelector())):
        ours, _ = attend(LAYER, query, key, value, None, scaling=0.3, s_aux=sinks)
    scores = 0.3 * query[0] @ key[0].repeat_interleave(2, 0).transpose(1, 2)
    scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    shares = torch.cat((scores, sinks[:, None, None].expand(4, 6, 1)), dim=-1).softmax(-1)
    expected = shares[..., :6] @ value[0].repeat_interleave(2, 0)
    torch.testing.assert_close(ours[0], expected.transpose(0, 1), rtol=0, atol=1e-5)


def test_ignored_arguments_pass() -> None:
    with attention_handler(CallRecorder()):
        attend(LAYER, *problem(), None, position_ids=torch.zeros(1), use_cache=False, other=None)


def test_values_wider_than_keys_are_refused() -> None:
    with (
        pytest.raises(ModelError, match="values have more channels"),
        attention_handler(CallRecorder()),
    ):
        attend(LAYER, *problem(value_dim=9), None)
