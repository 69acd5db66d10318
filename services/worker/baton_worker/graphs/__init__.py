"""Steps as captured graphs: launched once and replayed.

A decode step of a small model is a few hundred kernels of some microseconds each, and a host that
launches them one by one is the slower of the two. Captured on a GPU they are one launch (CUDA
graphs), on a CPU one loop over the calls of kernels (a tape). What a graph reads and writes stays
at the addresses of the capture, and its shapes are those of the capture: so a decode step of R rows
is written into memory of its own (`inputs`), padded to the next size that was captured (`policy`),
and replayed (`graphed_model`, `capture`). A tape takes the numbers of rows and tokens as arguments:
it needs no padding, and replays steps of any shape (`ragged_steps`).

    policy.py           which sizes are captured, or why none are
    inputs.py           the memory that captured steps read
    capture.py          a function that runs again: on a GPU, and the twin in Python
    agreed_recorder.py  all ranks of a model capture, or none
    tape.py             a function that runs again on a CPU
    startup.py          whether what was captured can be used
    buffer_reuse.py     which memory its kernels can share
    ragged_steps.py     steps of any shape, up to their hidden states, by a tape
    mixed_steps.py      the same by graphs, padded to the next number of tokens
    graphed_model.py    a model whose steps are replayed; a runner cannot tell it apart
    backend_times.py    how long attention takes in replayed steps
    backend_table.py    the fastest attention backend, measured once
"""

from __future__ import annotations

from baton_worker.graphs.capture import CudaRecorder, Recorder, Repeater, Uncaptured
from baton_worker.graphs.graphed_model import GraphedModel
from baton_worker.graphs.policy import Sizes, refuses
from baton_worker.graphs.tape import TapeRecorder, Untaped

__all__ = [
    "CudaRecorder",
    "GraphedModel",
    "Recorder",
    "Repeater",
    "Sizes",
    "TapeRecorder",
    "Uncaptured",
    "Untaped",
    "refuses",
]
