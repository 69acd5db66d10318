"""Explains why a prefix cache hit ended.

    cached ....................... | first token to compute .......................
    0                             hit

The explanation covers only pages of the same tenant and salt, and reveals no other prompts. The one
exception: a salted prompt that is cached without a salt, which its sender could also find out by
omitting the salt.
"""

from __future__ import annotations

import msgspec

from baton.protocol import MissReason
from baton_scheduler.block_hashes import BlockHashes, group_key
from baton_scheduler.sequence import Sequence
from baton_scheduler.workers.worker import Worker


def explain(worker: Worker, sequence: Sequence, hit: int) -> MissReason:
    """Reason why the hit of a sequence on its worker ended after `hit` tokens; see `MissReason`.

    Costs as much as a lookup of the prompt; done only on request.
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
    if index.goes_on(chain.prefix(block)):
        return "differs"
    return "end" if hit else "cold"


def _incomplete(worker: Worker, hash: bytes) -> bool:
    """True if some page group has evicted this block or a block before it."""
    index, groups = worker.pool.index, worker.groups
    if groups.plain:
        return index.was_evicted(hash)
    hashes = [group_key(hash, group) for group in range(len(groups))]
    return any(index.was_evicted(hash) or index.knows(hash) for hash in hashes)


def _unsalted(worker: Worker, sequence: Sequence) -> int:
    """Number of blocks of the same prompt that are cached without a salt."""
    size = worker.info.page_size
    submit = msgspec.structs.replace(sequence.submit, salt=b"")
    plain = BlockHashes(submit, sequence.log, size, sequence.weights)
    return worker.pool.index.cached_prefix(plain, sequence.reusable // size, worker.groups)[0].end
