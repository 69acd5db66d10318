"""What a layer asks for, in words."""

from __future__ import annotations

from dataclasses import replace

import torch

from baton_worker.attention import AttentionSpec
from baton_worker.attention.attention_spec import unknown

CALL = AttentionSpec(9, 3, 64, 0.125, 512, torch.bfloat16, torch.device("cpu"))


def test_a_call_reads_as_a_phrase() -> None:
    expected = "9 query and 3 key heads of 64 over the last 512 tokens, bfloat16 on cpu"
    assert str(CALL) == expected


def test_a_backend_names_what_it_does_not_know() -> None:
    asked = replace(CALL, softcap=3.0, sinks=True, chunk=7)
    assert unknown(asked, {"softcap"}) == "it does not know chunk, sinks"
    assert unknown(asked, {"softcap", "sinks", "chunk"}) is None
