"""Rules of single rows: applied together as they would be one by one, and to no other row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baton.protocol import Sampling
from baton_worker.sampling.token_rules import TokenRule, TokenRules

VOCAB = 20
SAMPLINGS = [
    Sampling(1, allowed_ids=(3, 5, 5, 7)),
    Sampling(1, bad_words=((4,), (1, 2))),
    Sampling(1, processors={"no_repeat_ngram": '{"size":2}'}),
    Sampling(
        1,
        allowed_ids=(2, 4),
        bad_words=((1, 2),),
        processors={"no_repeat_ngram": '{"size":1}'},
    ),
]
LOG = np.array([6, 1, 9, 1], np.int32)


def allowed(sampling: Sampling) -> set[int]:
    ids = set(sampling.allowed_ids or range(VOCAB))
    ids -= {w[-1] for w in sampling.bad_words if w[:-1] in ((), (1,))}
    if '{"size":2}' in sampling.processors.values():
        ids -= {9}
    if '{"size":1}' in sampling.processors.values():
        ids -= {6, 1, 9}
    return ids


@pytest.mark.row("F09.15")
def test_together_and_one_by_one() -> None:
    rules = [rule for s in SAMPLINGS if (rule := TokenRule.of(s)) is not None]
    logits = torch.arange(6.0 * VOCAB).view(6, VOCAB)
    rows = [1, 2, 4, 5]
    changed = logits.clone()
    TokenRules(rows, rules, [LOG] * 4).apply(changed)
    assert torch.equal(changed[[0, 3]], logits[[0, 3]])
    for row, rule, sampling in zip(rows, rules, SAMPLINGS, strict=True):
        alone = logits[row : row + 1].clone()
        TokenRules([0], [rule], [LOG]).apply(alone)
        assert torch.equal(changed[row], alone[0])
        kept = set(torch.isfinite(alone[0]).nonzero()[:, 0].tolist())
        assert kept == allowed(sampling)
        assert torch.equal(alone[0, sorted(kept)], logits[row, sorted(kept)])


def test_no_rule_without_a_reason() -> None:
    assert TokenRule.of(Sampling(1, temperature=0.5, logit_bias={1: 2.0})) is None
