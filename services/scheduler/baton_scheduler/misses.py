"""Why a prompt was not found in the prefix cache, or not to its end.

    found ........................ | first token that must be computed ............
    0                             hit

Said only of what the same tenant and salt could have found: of anybody else's prompts, nothing. The
one exception is a salted prompt that is known without a salt, which its owner could have seen by
leaving the salt out.
"""

from __future__ import annotations

import msgspec

from baton.protocol import MissReason
from baton_scheduler.fleet import Worker
from baton_scheduler.prefix import Chain
from baton_scheduler.request import Sequence


def explain(worker: Worker, sequence: Sequence, hit: int) -> MissReason:
    """What ended the hit of `hit` tokens that a sequence has on its worker; see `MissReason`.

    It costs as much as to look the prompt up, and is for requests that ask.
    """
    if not worker.caching:
        return "off"
    if not sequence.reusable:
        return "whole"
    if hit >= sequence.reusable:
        return "none"
    size, index = worker.info.page_size, worker.pool.index
    chain, block = sequence.chain(size), hit // size
    if sequence.submit.salt and _unsalted(worker, sequence) > block:
        return "salt"
    if (block + 1) * size <= sequence.num_tokens and index.was_evicted(chain.at(block)):
        return "evicted"
    if index.goes_on(chain.at(block - 1)):
        return "differs"
    return "end" if hit else "cold"


def _unsalted(worker: Worker, sequence: Sequence) -> int:
    """How many blocks of the same prompt are known without its salt."""
    size = worker.info.page_size
    submit = msgspec.structs.replace(sequence.submit, salt=b"")
    plain = Chain(submit, sequence.log, size)
    return len(worker.pool.match(plain, sequence.reusable // size))
