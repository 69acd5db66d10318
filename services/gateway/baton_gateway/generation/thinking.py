"""Thinking with a budget, or before a constrained output.

The worker enforces it on the token log, see `baton_worker.structured_output.thinking`.
"""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from baton.protocol import Grammar, Thinking
from baton_gateway.catalogue import ModelInfo
from baton_gateway.generation.request import EncodedPrompt, GenerationRequest
from baton_gateway.generation.sequence_builder import starts
from baton_gateway.http.errors import invalid


def check_budget(request: GenerationRequest, model_info: ModelInfo) -> None:
    """Raise `InvalidRequest` for a thinking budget that cannot be enforced.

    A model that does not think fulfils every budget.
    """
    options, formats = request.tools, model_info.formats
    if options is None or options.thinking_budget is None or options.budget_is_target:
        return
    if formats.reasoning is None or formats.thinking_tags is not None:
        return
    raise invalid(
        "thinking_token_budget",
        f"Unsupported value: thinking in the format '{formats.reasoning.name}' is not between two "
        "tags and cannot be bounded. Leave it out, or bound it by 'reasoning_effort'.",
        "unsupported_value",
    )


def needs_thinking(request: GenerationRequest, model_info: ModelInfo) -> bool:
    """Return whether the grammar of a request must include the thinking before it.

    The grammar of a demanded call includes it already, unless there is a budget.
    """
    options = request.tools
    if options is None or model_info.formats.thinking_tags is None:
        return False
    if options.thinking_budget is not None:
        return True
    return request.sampling.params.grammar is not None and not options.demanded


def thoughtful(
    request: GenerationRequest,
    prompts: list[EncodedPrompt],
    model_info: ModelInfo,
    ids: tuple[int, int],
) -> GenerationRequest:
    """Return the request with its thinking in front of its grammar, or of free text.

    Args:
        ids: tokens of the opener and the closer; -1 if it is not one token.
    """
    options, tags = request.tools, model_info.formats.thinking_tags
    assert options is not None and tags is not None
    budget = -1 if options.thinking_budget is None else options.thinking_budget
    opened = starts(options, prompts, model_info)[0] == "thinking"
    params = request.sampling.params
    grammar = structs.replace(
        params.grammar or Grammar("text", ""), thinking=Thinking(*tags, opened, *ids, budget)
    )
    params = structs.replace(params, grammar=grammar)
    return replace(request, sampling=replace(request.sampling, params=params))
