"""Tool calls that a request demands: the grammar that makes the output call."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from baton_gateway.catalogue import ModelInfo
from baton_gateway.generation.request import EncodedPrompt, GenerationRequest
from baton_gateway.generation.sequence_builder import starts
from baton_gateway.http.errors import invalid
from baton_gateway.structured_output.request import Constraint


def check_calls(request: GenerationRequest, facts: ModelInfo) -> None:
    """Raise `InvalidRequest` for tools that this model cannot call as the request wants."""
    options = request.tools
    if options is None or options.choice == "none":
        return
    facts.formats.caller(options)
    if not options.demanded:
        return
    if request.sampling.constraint is not None:
        raise invalid(
            request.sampling.constraint.param,
            "A demanded tool call decides the whole output: send tool_choice 'auto' or 'none' "
            "together with a constraint.",
            "unsupported_value",
        )
    # Every start has a grammar or none has: what cannot be demanded is refused before encoding.
    facts.formats.grammar(options, "content")


def demanding(
    request: GenerationRequest, prompts: list[EncodedPrompt], facts: ModelInfo
) -> GenerationRequest:
    """Return the request with the grammar of the calls that it demands, if it does."""
    options = request.tools
    if options is None or not options.demanded:
        return request
    grammar = facts.formats.grammar(options, starts(options, prompts, facts)[0])
    sampling = replace(
        request.sampling,
        params=structs.replace(request.sampling.params, grammar=grammar),
        constraint=Constraint(grammar, "tools"),
    )
    return replace(request, sampling=sampling)
