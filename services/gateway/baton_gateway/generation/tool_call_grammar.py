"""Grammars of tool calls: for an output that must call, and for one that may."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from baton.protocol import Grammar
from baton.structured_output.llguidance import expression
from baton_gateway.catalogue import ModelInfo
from baton_gateway.generation.request import EncodedPrompt, GenerationRequest
from baton_gateway.generation.sequence_builder import starts
from baton_gateway.http.errors import invalid
from baton_gateway.output_formats import ToolOptions
from baton_gateway.structured_output.request import Constraint

_ENGINE = "llguidance"
"""The grammar engine that supports tool calls."""


def check_calls(request: GenerationRequest, model_info: ModelInfo) -> None:
    """Raise `InvalidRequest` for tools that this model cannot call as requested."""
    options, constraint = request.tools, request.sampling.constraint
    if options is None or options.choice == "none":
        return
    model_info.formats.caller(options)
    if options.demanded:
        _check_alone(constraint)
        # Either every start has a grammar or none: refuse before encoding.
        model_info.formats.grammar(options, "content")
    elif options.strict:
        _check_strict(constraint)
        model_info.formats.auto_grammar(options)


def _check_alone(constraint: Constraint | None) -> None:
    if constraint is not None:
        raise invalid(
            constraint.param,
            "A demanded tool call decides the whole output: send tool_choice 'auto' or 'none' "
            "together with a constraint.",
            "unsupported_value",
        )


def _check_strict(constraint: Constraint | None) -> None:
    if constraint is not None and expression(constraint.grammar) is None:
        raise invalid(
            constraint.param,
            f"Unsupported value: a constraint of the kind '{constraint.grammar.kind}' cannot stand "
            "beside tools with 'strict': leave one of them out.",
            "unsupported_value",
        )


def with_call_grammar(
    request: GenerationRequest, prompts: list[EncodedPrompt], model_info: ModelInfo, engine: str
) -> GenerationRequest:
    """Return the request with the grammar of its tool calls: demanded ones, or ones allowed next to
    a constraint or with `strict`.

    Args:
        engine: of this server. With another engine than llguidance, or a call format without a
            grammar, a constraint excludes calls.
    """
    options, constraint = request.tools, request.sampling.constraint
    if options is None or options.choice == "none":
        return request
    if options.demanded:
        grammar = model_info.formats.grammar(options, starts(options, prompts, model_info)[0])
        return _with(request, Constraint(grammar, "tools"))
    auto_grammar = _auto(options, constraint, model_info, engine)
    return request if auto_grammar is None else _with(request, auto_grammar)


def _auto(
    options: ToolOptions, constraint: Constraint | None, model_info: ModelInfo, engine: str
) -> Constraint | None:
    if options.strict and constraint is None:
        return Constraint(model_info.formats.auto_grammar(options), "tools")
    otherwise = expression(constraint.grammar) if constraint is not None else None
    able = options.strict or (engine == _ENGINE and model_info.formats.calls_have_grammar)
    if constraint is None or otherwise is None or not able:
        return None
    grammar: Grammar = model_info.formats.auto_grammar(options, otherwise)
    return replace(constraint, grammar=grammar)


def _with(request: GenerationRequest, constraint: Constraint) -> GenerationRequest:
    params = structs.replace(request.sampling.params, grammar=constraint.grammar)
    sampling = replace(request.sampling, params=params, constraint=constraint)
    return replace(request, sampling=sampling)
