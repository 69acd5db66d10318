"""Paged attention for decode rows and prompt chunks in one launch.

The rows of a tile are (token, query head) pairs that share a key head, so a key is read once for
all of them. Prompt chunks run one program per tile, keys in blocks with an online softmax (Dao
2023, arXiv:2307.08691). A row of few new tokens would leave most of a GPU idle: its keys are cut
into partitions, counted from position 0, which run beside each other and are merged in their order
(flash decoding; vLLM's paged attention v2).

    query block -> row     programs are numbered so that row r owns starts[r] // Q + r and the
                           following ones; a program finds its row by bisection, none waits for
                           the host to count

Of latents (DeepSeek-V2, arXiv:2405.04434), whose first channels are the value, a tile is read once
and serves as key and as value. They are wide and shared by all heads of a layer, more than a tile
has rows for: programs divide the heads of a group among each other.
"""
