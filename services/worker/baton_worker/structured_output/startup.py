"""Builds the grammar compiler of a checkpoint, or logs why there is none."""

from __future__ import annotations

from pathlib import Path

from baton.errors import ModelError
from baton.logs import logger
from baton_worker.structured_output import GRAMMARS
from baton_worker.structured_output.jump_forward import Spelling, encoder
from baton_worker.structured_output.manager import StructuredOutputManager
from baton_worker.structured_output.matcher import GrammarEngine
from baton_worker.structured_output.vocabulary import Vocabulary

log = logger(__name__)


def constraints_of(
    path: Path, vocab_size: int, *, backend: str, jump_ahead: bool
) -> StructuredOutputManager | None:
    """Matchers of grammars for a checkpoint; None for one without a usable vocabulary."""
    try:
        vocabulary = Vocabulary.read(path, vocab_size)
    except ModelError as error:
        log.warning("structured output is not available: %s", error.message)
        return None
    grammars: GrammarEngine = GRAMMARS.load(backend)(vocabulary)
    return StructuredOutputManager(
        grammars, vocab_size, _spelling(path, vocabulary), jump_ahead=jump_ahead
    )


def _spelling(path: Path, vocabulary: Vocabulary) -> Spelling | None:
    """Spelling of forced text by the tokenizer; None if any spelling is accepted."""
    try:
        return Spelling(vocabulary, encoder(path, vocabulary))
    except ModelError as error:
        log.warning("nothing is forced in structured output: %s", error.message)
        return None
