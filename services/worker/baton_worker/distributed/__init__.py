"""One model on several processes: tensor parallelism, context parallelism and expert parallelism.

    leader (rank 0)    talks to the scheduler, samples, sends each forward pass to the followers
    followers          run the same forward pass on their shards; know no requests

Layers are unaware of this. `shard_spec` derives the spec of one rank's shard, layers are built from
it as usual, the loader fills them with slices (`shard_weights`), and modules wrapped around the
shards sum or gather their outputs (`tensor_parallel`).

    expert group       workers that each hold the whole model except for a share of the experts

They run every step together (`step_sync`). Every token reaches the experts of all ranks through
`all2all`, by modules wrapped around the experts (`expert_parallel`). Balanced
experts move between ranks (`eplb`).
"""
