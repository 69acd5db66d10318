"""One model on several processes: each rank holds a part of every weight and every page.

    leader (rank 0)    talks to the scheduler, samples; tells the others each forward pass
    followers          run the same forward pass on their parts; hold no request

Layers know nothing of this. A spec is cut (`cut`), layers of that smaller model are built as ever,
the loader fills them with slices (`slices`), and what comes out of a part is summed or gathered by
modules put around it (`spread`).

    a group (`bond`)   workers with all of a model but the experts, of which each has some

They take every step together (`lockstep`), and the tokens of all visit the experts of each
(`all2all`), by way of modules put around these (`exchange`).
"""
