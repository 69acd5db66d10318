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
from baton_scheduler.kv.prefix_cache import BlockHashes, group_key
from baton_scheduler.sequence import Sequence
from baton_scheduler.workers.worker import Worker


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
    if (block + 1) * size <= sequence.num_tokens and _incomplete(worker, chain.at(block)):
        return "evicted"
    if index.goes_on(chain.at(block - 1)):
        return "differs"
    return "end" if hit else "cold"


def _incomplete(worker: Worker, hash: bytes) -> bool:
    """What some group of layers keeps of this block has made room; or of what is before it, so that
    the block itself, which is there, was not found."""
    index, groups = worker.pool.index, worker.groups
    if groups.plain:
        return index.was_evicted(hash)
    names = [group_key(hash, group) for group in range(len(groups))]
    return any(index.was_evicted(name) or index.knows(name) for name in names)


def _unsalted(worker: Worker, sequence: Sequence) -> int:
    """How many blocks of the same prompt are known without its salt."""
    size = worker.info.page_size
    submit = msgspec.structs.replace(sequence.submit, salt=b"")
    plain = BlockHashes(submit, sequence.log, size)
    return worker.pool.index.known(plain, sequence.reusable // size, worker.groups)[0].end
