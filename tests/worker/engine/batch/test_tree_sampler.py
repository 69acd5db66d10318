"""Trees are chains with siblings: what is drawn, and beside it what is most probable."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baton.protocol import NewSequence, Sampling
from baton.protocol.token_columns import pack
from baton_worker.engine.batch.tree_sampler import TreeSampler
from baton_worker.speculative.token_tree import TokenTree
from tests.support.worker.plans import batch, plan


@pytest.mark.row("F08.11")
def test_siblings_are_the_most_probable_others() -> None:
    """Padded ids, stop ids, and what would follow them are left out."""
    shape = TokenTree.parse("[(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (2, 0)]")
    held = batch(vocab_size=10)
    sampling = Sampling(9, temperature=0.0, stop_ids=(8,), logit_bias={5: 50.0})
    held.prepare(plan(new_sequences=(NewSequence(0, pack([3, 4]), 2, sampling),)))
    drafts, slots = TreeSampler(shape, held.sequences, held.sampling), np.arange(1)
    drafts.begin([0])
    first, second = torch.zeros(1, 12), torch.zeros(1, 12)
    first[0, [7, 8, 6, 11]] = torch.tensor([4.0, 3.0, 2.0, 9.0])
    second[0, [2, 1]] = torch.tensor([4.0, 3.0])
    assert drafts.sample(first, slots).tolist() == [5], "the bias is the target's too"
    assert drafts.sample(second, slots).tolist() == [5]
    tokens, parents = drafts.tree(0, 2)
    # Ranks of the first depth: 5, 7, 8; 8 ends the sequence. Of the second: 5, 2.
    assert tokens.tolist() == [5, 7, 5, 2, 5] and parents.tolist() == [-1, 0, 0, 1, 1, 2]
    tokens, parents = drafts.tree(0, 1)
    assert tokens.tolist() == [5, 7] and parents.tolist() == [-1, 0, 0]
    assert drafts.tree(0, 0)[1].tolist() == [-1]
