"""Pair templates of decoder rerankers: prompts that join a query and a document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """The prompt of a pair."""

    text: str
    """A Jinja template over two messages with the roles "query" and "document", like vLLM's score
    templates. Contents are strings."""
    media: Mapping[str, str] = field(default_factory=dict)
    """Placeholder text of an item, by modality; a template without placeholders accepts texts
    only."""
    end: tuple[int, ...] = ()
    """Token ids after the text."""
    document_first: bool = False
    """The document comes before the query."""


_CONTENT = "{{{{ (messages | selectattr('role', 'eq', '{}') | first).content }}}}"
_QUERY, _DOCUMENT = _CONTENT.format("query"), _CONTENT.format("document")

PAIR_TEMPLATES = {
    # jina-reranker-m0, as in its `compute_score`; the state of token 100 is scored.
    "JinaVLForRanking": PairTemplate(
        f"**Document**:\n{_DOCUMENT}\n**Query**:\n{_QUERY}",
        media={"image": "<|vision_start|><|image_pad|><|vision_end|>"},
        end=(100,),
        document_first=True,
    ),
}
"""By architecture. Other models use the post-processor of their tokenizer."""
