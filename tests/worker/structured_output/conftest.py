"""The smallest real model and its vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.layers.build_context import BuildContext
from baton_worker.structured_output.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def loaded(stories: Path) -> LoadedModel:
    return load_model(stories, BuildContext(torch.device("cpu"), torch.float32))


@pytest.fixture(scope="module")
def vocabulary(stories: Path, loaded: LoadedModel) -> Vocabulary:
    return Vocabulary.read(stories, loaded.vocab_size)
