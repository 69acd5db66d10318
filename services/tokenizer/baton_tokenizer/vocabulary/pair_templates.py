"""Pair templates: how a reranker that is a decoder joins a query and a document into a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """The prompt of a pair."""

    text: str
    """A Jinja template over two messages of the roles "query" and "document", as vLLM's score
    templates are. Contents are strings."""
    media: Mapping[str, str] = field(default_factory=dict)
    """Text that stands for an item, by modality; a template without takes texts only."""
    end: tuple[int, ...] = ()
    """Token ids behind the text."""
    document_first: bool = False
    """The document comes before the query."""


_CONTENT = "{{{{ (messages | selectattr('role', 'eq', '{}') | first).content }}}}"
_QUERY, _DOCUMENT = _CONTENT.format("query"), _CONTENT.format("document")

PAIR_TEMPLATES = {
    # jina-reranker-m0, as its `compute_score` writes a pair; the state of token 100 is scored.
    "JinaVLForRanking": PairTemplate(
        f"**Document**:\n{_DOCUMENT}\n**Query**:\n{_QUERY}",
        media={"image": "<|vision_start|><|image_pad|><|vision_end|>"},
        end=(100,),
        document_first=True,
    ),
}
"""By architecture. Other models join a pair by the post-processor of their tokenizer."""
