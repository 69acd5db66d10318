"""Complete systems with tiny checkpoints, for the pooling endpoints."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.whole_system import Whole, whole
from tests.support import tiny_encoders

LABELS = {0: "calm", 1: "glad", 2: "sad"}


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """Mean pooling, 48 numbers that may be cut, texts of at most 40 tokens."""
    folder = tmp_path_factory.mktemp("embedder")
    tiny_encoders.save(folder, "BertModel")
    tiny_encoders.save_sentence_files(folder, max_length=40)
    tiny_encoders.rewrite(folder, {}, is_matryoshka=True)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with whole(folder) as here:
        yield here


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """A cross-encoder."""
    folder = tmp_path_factory.mktemp("scorer")
    tiny_encoders.save(folder, "BertForSequenceClassification", num_labels=1)
    with whole(folder) as here:
        yield here


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """Three labels."""
    folder = tmp_path_factory.mktemp("classifier")
    tiny_encoders.save(folder, "BertForSequenceClassification", id2label=LABELS)
    with whole(folder) as here:
        yield here
