"""Rank 1 of 2, kept alive over many tiny models: `python -m tests.fakes.second_rank MEETING`.

Its standard input has a command `Begin` per model, whose settings are
`tests.fakes.two_ranks.Given`; then commands as from any leader, up to `End`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from baton.errors import SettingsError
from baton_worker.distributed.host_ranks import HostRanks
from baton_worker.executor.commands import Begin, End, Reader
from baton_worker.follower.follower import Follower
from baton_worker.follower.parent_death import die_with_parent
from baton_worker.follower.shard_update import Shard
from baton_worker.kv_cache import KVCache
from baton_worker.kv_cache.host_pages import HostPages
from baton_worker.lora.targets import LoraTargets
from baton_worker.models.decoder import Model
from tests.fakes.two_ranks import Given


def main() -> None:
    die_with_parent(sys.stdin.buffer)
    torch.set_num_threads(1)
    ranks, commands = HostRanks(Path(sys.argv[1]), 1, 2), Reader(sys.stdin.buffer)
    while isinstance(begin := commands.next(), Begin):
        given = Given(**begin.settings)
        try:
            loaded = given.load(ranks)
        except SettingsError:  # The leader raises the same.
            assert isinstance(commands.next(), End)
            continue
        assert isinstance(loaded.model, Model)
        cache = KVCache(**given.pages(loaded))
        host, targets = HostPages(cache, given.host_pages), None
        if given.adapters:
            targets = LoraTargets(loaded.model, loaded.spec, loaded.parts)
        Follower(Shard(loaded.model, cache, targets), host, ranks).run(commands)


if __name__ == "__main__":
    main()
