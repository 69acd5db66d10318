"""The published prompts of rerankers."""

from __future__ import annotations

from baton_tokenizer.chat_template import CompiledTemplate
from baton_tokenizer.vocabulary.pair_templates import PAIR_TEMPLATES


def test_every_template_writes_the_document_where_it_says() -> None:
    for template in PAIR_TEMPLATES.values():
        sides = [{"role": "query", "content": "QQ"}, {"role": "document", "content": "DD"}]
        text = CompiledTemplate(template.text, {}).render({"messages": sides})
        assert (text.index("DD") < text.index("QQ")) == template.document_first


def test_jina_reranker_m0() -> None:
    template = PAIR_TEMPLATES["JinaVLForRanking"]
    sides = [{"role": "query", "content": "q"}, {"role": "document", "content": "d"}]
    text = CompiledTemplate(template.text, {}).render({"messages": sides})
    assert text == "**Document**:\nd\n**Query**:\nq" and template.end == (100,)
