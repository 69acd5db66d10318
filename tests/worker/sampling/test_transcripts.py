"""The rules of transcripts are those of transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import (
    GenerationConfig,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from baton_worker.sampling.logits_processors import PROCESSORS, parse

END, NONE, VOCAB = 20, 25, 60
"""The end of a text, the token that there are no timestamps, which are behind it."""


@pytest.mark.row("A01")
def test_all_rules_at_any_output() -> None:
    given = '{"suppressed":[1,2,22],"suppressed_first":[3,20]%s}'
    times = f',"first_timestamp":{NONE + 1},"end":{END},"max_first_timestamp":%d'
    for most in (4, -1, None):
        text = given % ("" if most is None else times % most)
        argument = parse({"transcript": text})["transcript"]
        config = GenerationConfig(eos_token_id=END)
        config.no_timestamps_token_id = NONE
        if most == 4:
            config.max_initial_timestamp_index = most
        processors = [
            SuppressTokensAtBeginLogitsProcessor([3, 20], 1),
            SuppressTokensLogitsProcessor([1, 2, 22]),
        ]
        if most is not None:
            processors.append(WhisperTimeStampLogitsProcessor(config, 1))
        logs = [[], [30], [30, 5], [30, 5, 33], [30, 5, 33, 33], [30, 5, 33, 33, 6, 7], [6, 7]]
        logits = torch.randn(len(logs), VOCAB, generator=torch.Generator().manual_seed(1)) * 2
        expected = []
        for row, log in zip(logits.clone(), logs, strict=True):
            scores = row[None]
            for processor in processors:
                scores = processor(torch.tensor([[0, *log]]), scores)
            expected.append(scores[0])
        rule = PROCESSORS.load("transcript")
        rule(logits, [np.array(log, np.int32) for log in logs], [argument] * len(logs))
        assert torch.equal(logits, torch.stack(expected))
