"""Locally typical sampling: keep the tokens whose surprise is closest to the expected surprise.

Meister, Pimentel, Wiher and Cotterell 2022, arXiv:2202.00666. Tokens exactly as typical as the last
one kept are kept too, as everywhere in truncation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker.sampling.vocab_blocks import mass


def keep_typical(probabilities: Tensor, typical_p: Tensor) -> None:
    """Set all but the fewest most typical tokens of mass `typical_p` to 0, in place.

    Args:
        probabilities: float32 [R, V].
        typical_p: float64 [R] in (0, 1]; 1 means off.
    """
    surprise = probabilities.log().neg_()
    # Tokens of probability 0 add nothing to the entropy.
    entropy = mass(torch.where(probabilities > 0, probabilities * surprise, 0.0))
    total = mass(probabilities)
    deviation = (surprise - (entropy / total).float()[:, None]).abs_()
    most = _least_reach(deviation, probabilities, typical_p * total)
    most = torch.where(typical_p < 1, most, torch.inf)
    probabilities.mul_(deviation.le_(most[:, None]))


def _least_reach(deviation: Tensor, weights: Tensor, target: Tensor) -> Tensor:
    """The smallest float32 deviation within which the mass is at least `target` [R].

    Non-negative floats are ordered like their bits: at most 31 passes, and no sort, whose sums
    would depend on the order of equal numbers.
    """
    low = torch.full((len(weights),), -1, dtype=torch.int32, device=weights.device)
    infinity = torch.tensor(torch.inf, device=weights.device).view(torch.int32)
    high = infinity.expand(len(weights)).clone()
    scratch = torch.empty_like(weights)
    while bool((high.long() - low > 1).any()):
        middle = low + (high - low) // 2
        scratch.copy_(deviation).le_(middle.view(torch.float32)[:, None]).mul_(weights)
        enough = mass(scratch) >= target
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return high.view(torch.float32)
