"""What followed the last time that a text ended like this."""

from __future__ import annotations

import numpy as np
import pytest

from baton_worker.speculative.config import SpeculativeConfig
from baton_worker.speculative.ngram import NgramProposer
from baton_worker.speculative.proposer import DraftRequest
from tests.support.worker.proposers import MostProbable, context


@pytest.mark.row("F08.02")
def test_the_longest_and_then_the_latest_match_goes_on() -> None:
    for tokens, most, drafts in (
        ([1, 2, 3, 4, 5, 1, 2, 3], 3, [4, 5, 1]),
        ([1, 2, 3, 4, 5, 1, 2, 3], 2, [4, 5]),
        # Three tokens agree further back, two of them later.
        ([7, 1, 2, 5, 9, 1, 2, 6, 7, 1, 2], 2, [5, 9]),
        ([1, 2, 5, 9, 1, 2, 6, 8, 1, 2], 2, [6, 8]),
        ([1, 3, 2, 3], 2, []),  # One token is too short.
        ([4, 4, 4, 4], 3, [4]),
        ([1, 2, 3], 3, []),
        ([1], 3, []),
    ):
        config = SpeculativeConfig(5, prompt_lookup_max=3, prompt_lookup_min=2)
        request = DraftRequest(0, np.array(tokens, np.int32), most)
        [made] = NgramProposer(context(config)).propose([request], MostProbable())
        assert made.tolist() == drafts, tokens
