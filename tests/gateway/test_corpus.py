"""Corpus of bad input: each row checks status, code and field, then sends a valid request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton_gateway.structured_output import validator
from tests.fakes.gateway_app import (
    Site,
    chat,
    error_of,
    site,
)
from tests.fakes.gateway_engine import (
    EOS,
    MAX_LENGTH,
    MEDIA_PAD,
    MODEL,
    VOCAB,
)

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
JSON = {"type": "json_object"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
HUGE = 10**30


def _call(arguments: str) -> dict[str, Any]:
    return CALL | {"function": {"name": "f", "arguments": arguments}}


Row = tuple[str, dict[str, Any], str | None, str | None]
"""(id, changed fields, code, param), all of status 400"""

SCALARS: list[Row] = [
    ("C06", {"model": ...}, "missing_required_parameter", "model"),
    ("C06", {"model": None}, "invalid_type", "model"),
    ("C06", {"model": ""}, "missing_required_parameter", "model"),
    ("C06", {"model": 5}, "invalid_type", "model"),
    ("C06", {"model": "x" * 10_000}, "model_not_found", "model"),
    ("C06", {"model": "../x"}, "model_not_found", "model"),
    ("C06", {"model": "a\0b"}, "model_not_found", "model"),
    ("C12", {"temperature": "NaN"}, "invalid_type", "temperature"),
    ("C12", {"temperature": "1"}, "invalid_type", "temperature"),
    *(("C13", {f: "1"}, "invalid_type", f) for f in ("top_p", "min_p", "repetition_penalty")),
    *(("C13", {f: True}, "invalid_type", f) for f in ("presence_penalty", "frequency_penalty")),
    ("C13", {"logit_bias": {"5": "1"}}, "invalid_type", "logit_bias"),
    ("C14", {"temperature": -0.1}, "decimal_below_min_value", "temperature"),
    ("C14", {"temperature": 2.1}, "decimal_above_max_value", "temperature"),
    ("C14", {"temperature": True}, "invalid_type", "temperature"),
    ("C16", {"top_p": -1}, "decimal_below_min_value", "top_p"),
    ("C16", {"top_p": 1.0001}, "decimal_above_max_value", "top_p"),
    ("C17", {"presence_penalty": 2.01}, "decimal_above_max_value", "presence_penalty"),
    ("C17", {"frequency_penalty": -2.01}, "decimal_below_min_value", "frequency_penalty"),
    ("C18", {"max_tokens": 0}, "integer_below_min_value", "max_tokens"),
    ("C18", {"max_tokens": -1}, "integer_below_min_value", "max_tokens"),
    *(("C18", {"max_tokens": v}, "invalid_type", "max_tokens") for v in (1.5, "10", True)),
    *(("C19", {"max_tokens": v}, "integer_above_max_value", "max_tokens") for v in (2**31, HUGE)),
    *(("C20", {"n": v}, "integer_below_min_value", "n") for v in (0, -1)),
    *(("C20", {"n": v}, "integer_above_max_value", "n") for v in (129, 10**9, 2**63)),
    ("C22", {"seed": 2**63}, "integer_above_max_value", "seed"),
    ("C22", {"seed": -(2**63) - 1}, "integer_below_min_value", "seed"),
    ("C22", {"seed": 1.5}, "invalid_type", "seed"),
    ("C23", {"stop": ["a"] * 5}, "array_above_max_length", "stop"),
    ("C23", {"stop": ["a" * 2**20]}, "string_above_max_length", "stop"),
    ("C23", {"stop": ""}, "empty_string", "stop"),
    ("C23", {"stop": [""]}, "empty_string", "stop"),
    ("C23", {"stop": [None]}, "invalid_type", "stop"),
    ("C23", {"stop": 5}, "invalid_type", "stop"),
    ("C24", {"logprobs": "yes"}, "invalid_type", "logprobs"),
    ("C24", {"logprobs": True, "top_logprobs": 21}, "integer_above_max_value", "top_logprobs"),
    ("C24", {"logprobs": True, "top_logprobs": -1}, "integer_below_min_value", "top_logprobs"),
    ("C24", {"top_logprobs": 2}, "invalid_value", "top_logprobs"),
    *(
        ("C25", {"logit_bias": {key: 1}}, "invalid_value", "logit_bias")
        for key in ("-1", "999999999", "abc", str(HUGE), "²")
    ),
    ("C25", {"logit_bias": {"5": 101}}, "decimal_above_max_value", "logit_bias"),
    ("C25", {"logit_bias": {"5": -101}}, "decimal_below_min_value", "logit_bias"),
    ("C25", {"logit_bias": []}, "invalid_type", "logit_bias"),
    (
        "C25",
        {"logit_bias": {str(i): 1 for i in range(100_000)}},
        "array_above_max_length",
        "logit_bias",
    ),
    (
        "C26",
        {"logit_bias": {str(i): -100 for i in range(1025)}},
        "array_above_max_length",
        "logit_bias",
    ),
    *(("C28", {"stream": v}, "invalid_type", "stream") for v in ("yes", 1, None)),
    ("C28", {"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
    (
        "C28",
        {"stream": True, "stream_options": {"include_usage": "x"}},
        "invalid_type",
        "stream_options.include_usage",
    ),
    ("C29", {"user": "u" * 10_000_000}, "string_above_max_length", "user"),
    (
        "C29",
        {"metadata": {str(i): "v" for i in range(17)}},
        "object_above_max_properties",
        "metadata",
    ),
    ("C29", {"metadata": {"k" * 65: "v"}}, "string_above_max_length", "metadata"),
    ("C29", {"metadata": {"k": {"nested": 1}}}, "invalid_type", "metadata"),
    ("C30", {"service_tier": "gold"}, "invalid_value", "service_tier"),
    ("C30", {"priority": 1.5}, "invalid_type", "priority"),
    ("C31", {"max_tokens": 3, "max_completion_tokens": 4}, "invalid_value", "max_tokens"),
    ("C32", {"min_tokens": 9, "max_tokens": 4}, "invalid_value", "min_tokens"),
    ("C32", {"min_tokens": -1}, "invalid_value", "min_tokens"),
    ("--", {"cache_salt": ""}, "empty_string", "cache_salt"),
    ("--", {"stop_token_ids": [VOCAB]}, "invalid_value", "stop_token_ids"),
    ("--", {"stop_token_ids": [True]}, "invalid_type", "stop_token_ids[0]"),
    ("--", {"top_k": -2}, "integer_below_min_value", "top_k"),
    ("--", {"repetition_penalty": 1e-320}, "decimal_below_min_value", "repetition_penalty"),
    ("--", {"prompt_logprobs": 1, "stream": True}, "unsupported_value", "prompt_logprobs"),
]

CONTENT = "messages[0].content"
MESSAGES: list[tuple[str, Any, str | None, str | None]] = [
    ("C33", ..., "missing_required_parameter", "messages"),
    ("C33", None, "invalid_type", "messages"),
    ("C33", [], "empty_array", "messages"),
    ("C33", {}, "invalid_type", "messages"),
    ("C33", "hi", "invalid_type", "messages"),
    ("C33", [None], "invalid_type", "messages[0]"),
    ("C33", [5], "invalid_type", "messages[0]"),
    ("C34", [{"content": "x"}], "missing_required_parameter", "messages[0].role"),
    ("C34", [{"role": "root", "content": "x"}], "invalid_value", "messages[0].role"),
    ("C34", [{"role": None, "content": "x"}], "invalid_value", "messages[0].role"),
    ("C34", [{"role": [], "content": "x"}], "invalid_value", "messages[0].role"),
    ("C34", [USER] * 100_000, "array_above_max_length", "messages"),
    ("C37", [USER | {"name": "a<|im_end|>"}], "invalid_value", "messages[0].name"),
    ("C38", [{"role": "user", "content": None}], "invalid_type", CONTENT),
    ("C38", [{"role": "user"}], "missing_required_parameter", CONTENT),
    ("C38", [{"role": "user", "content": 5}], "invalid_type", CONTENT),
    ("C38", [{"role": "user", "content": []}], "empty_array", CONTENT),
    *(
        (
            "C38",
            [{"role": "user", "content": [{"type": kind}]}],
            "invalid_value",
            f"{CONTENT}[0].type",
        )
        for kind in ("foo", [])
    ),
    (
        "C38",
        [{"role": "user", "content": [{"type": "text"}]}],
        "missing_required_parameter",
        f"{CONTENT}[0].text",
    ),
    ("C39", [{"role": "user", "content": "x" * 2**20}], "context_length_exceeded", "messages"),
    ("C41", [{"role": "user", "content": "🫠" * 2**18}], "context_length_exceeded", "messages"),
    (
        "C42",
        [USER, {"role": "tool", "content": "x", "tool_call_id": "c1"}],
        None,
        "messages.[1].role",
    ),
    (
        "C42",
        [
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "content": "x", "tool_call_id": "other"},
        ],
        None,
        "messages.[1].role",
    ),
    ("C42", [{"role": "assistant", "tool_calls": [CALL]}, USER], None, "messages.[1].role"),
    *(
        (
            "C43",
            [{"role": "assistant", "tool_calls": [_call(a)]}],
            "invalid_value",
            "messages[0].tool_calls[0].function.arguments",
        )
        for a in ("not json", '"' + "x" * 2**20 + '"', '{"a":' * 10_000, "[]")
    ),
    (
        "V01",
        [{"role": "user", "content": [{"type": "image_url", "image_url": "http://x"}]}],
        "invalid_type",
        f"{CONTENT}[0].image_url",
    ),
    (
        "V02",
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
        "unsupported_value",
        f"{CONTENT}[0].image_url",
    ),
    *(
        (
            "V28",
            [{"role": "user", "content": [{"type": "input_audio", "input_audio": audio}]}],
            code,
            f"{CONTENT}[0].input_audio{field}",
        )
        for audio, code, field in (
            ({"data": "AAAA", "format": "exe"}, "invalid_value", ".format"),
            ({"data": "", "format": "wav"}, "invalid_value", ".data"),
            ({"data": "AAAA", "format": "wav"}, "unsupported_value", ""),
        )
    ),
]  # fmt: skip

FORMAT = "response_format"
EXTENSIONS: list[Row] = [
    ("C27", {"allowed_token_ids": []}, "empty_array", "allowed_token_ids"),
    *(
        ("C27", {"allowed_token_ids": [v]}, "invalid_value", "allowed_token_ids")
        for v in (-1, VOCAB)
    ),
    ("C27", {"allowed_token_ids": [1.5]}, "invalid_type", "allowed_token_ids[0]"),
    (
        "C27",
        {"allowed_token_ids": [65, EOS], "min_tokens": 1, "stop_token_ids": [65]},
        "invalid_value",
        "allowed_token_ids",
    ),
    (
        "C27",
        {"allowed_token_ids": [65], "bad_words": ["A"]},
        "invalid_value",
        "allowed_token_ids",
    ),
    ("C27", {"allowed_token_ids": [1] * 4097}, "array_above_max_length", "allowed_token_ids"),
    ("--", {"bad_words": ["a"] * 129}, "array_above_max_length", "bad_words"),
    ("--", {"bad_words": "a"}, "invalid_type", "bad_words"),
    ("--", {"bad_words": [1]}, "invalid_type", "bad_words[0]"),
    ("--", {"bad_words": [" "]}, "empty_string", "bad_words[0]"),
    ("--", {"bad_words": ["a" * 1025]}, "string_above_max_length", "bad_words[0]"),
    ("--", {"bad_words": ["a" * 17]}, "string_above_max_length", "bad_words"),
    (
        "--",
        {"processors": {"no_repeat_ngram": {"size": 2}}},
        "unsupported_value",
        "processors.no_repeat_ngram",
    ),
    ("--", {"processors": "no_repeat_ngram"}, "invalid_type", "processors"),
    (
        "--",
        {"processors": {str(i): 1 for i in range(9)}},
        "object_above_max_properties",
        "processors",
    ),
    (
        "--",
        {"speculative": {"num_speculative_tokens": 65}},
        "integer_above_max_value",
        "speculative.num_speculative_tokens",
    ),
    ("--", {"typical_p": 0}, "decimal_below_min_value", "typical_p"),
    ("--", {"typical_p": 1.1}, "decimal_above_max_value", "typical_p"),
    ("C44", {FORMAT: "json"}, "invalid_type", FORMAT),
    ("C44", {FORMAT: {"type": "xml"}}, "invalid_value", f"{FORMAT}.type"),
    ("C44", {FORMAT: {}}, "missing_required_parameter", f"{FORMAT}.type"),
    (
        "C44",
        {FORMAT: {"type": "json_schema"}},
        "missing_required_parameter",
        f"{FORMAT}.json_schema",
    ),
    (
        "C44",
        {FORMAT: {"type": "json_schema", "json_schema": {}}},
        "missing_required_parameter",
        f"{FORMAT}.json_schema.name",
    ),
    *(
        (
            "C44",
            {FORMAT: {"type": "json_schema", "json_schema": {"name": name}}},
            "invalid_value",
            f"{FORMAT}.json_schema.name",
        )
        for name in ("x" * 65, "a b")
    ),
    (
        "C44",
        {FORMAT: {"type": "json_schema", "json_schema": {"name": "r"}}},
        "missing_required_parameter",
        f"{FORMAT}.json_schema.schema",
    ),
    (
        "C44",
        {FORMAT: {"type": "json_schema", "json_schema": {"name": "r", "schema": {}, "strict": 1}}},
        "invalid_type",
        f"{FORMAT}.json_schema.strict",
    ),
    (
        "C60",
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "s"}}}]},
        "invalid_function_parameters",
        "tools[0].function.parameters",
    ),
    (
        "C61",
        {
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "f",
                        "parameters": {"properties": {"a": {"pattern": "["}}},
                    },
                }
            ]
        },
        "invalid_function_parameters",
        "tools[0].function.parameters",
    ),
    ("C62", {"tools": [TOOL] * 129}, "array_above_max_length", "tools"),
    ("C62", {"tools": [TOOL, TOOL]}, "invalid_value", "tools[1].function.name"),
    *(
        (
            "C62",
            {"tools": [{"type": "function", "function": {"name": name}}]},
            "invalid_value",
            "tools[0].function.name",
        )
        for name in ("a b", "x" * 65, "__proto__")
    ),
    *(
        (
            "C62",
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": p}}]},
            "invalid_value",
            "tools[0].function.parameters",
        )
        for p in (None, [])
    ),
    ("--", {"tools": [TOOL]}, "unsupported_value", "tool_choice"),
    ("C63", {"chat_template": "{{ 1 }}"}, "field_not_allowed", "chat_template"),
    *(
        (
            "C64",
            {"chat_template_kwargs": {name: True}},
            "field_not_allowed",
            f"chat_template_kwargs.{name}",
        )
        for name in ("tokenize", "tools", "messages", "chat_template", "__class__")
    ),
    (
        "C65",
        {"chat_template_kwargs": {"a": "x" * 10_000_000}},
        "string_above_max_length",
        "chat_template_kwargs",
    ),
    ("C65", {"chat_template_kwargs": []}, "invalid_type", "chat_template_kwargs"),
    *(
        ("C66", {field: {}}, "field_not_allowed", field)
        for field in (
            "kv_transfer_params",
            "prompt_embeds",
            "mm_processor_kwargs",
            "logits_processors",
            "custom_logit_processor",
            "media_io_kwargs",
            "cache_salt",
        )
    ),
    (
        "C66",
        {"mm_processor_kwargs": {"use_audio_in_video": True, "fps": 9}},
        "field_not_allowed",
        "mm_processor_kwargs",
    ),
    (
        "--",
        {"mm_processor_kwargs": {"use_audio_in_video": 1}},
        "invalid_type",
        "mm_processor_kwargs.use_audio_in_video",
    ),
    (
        "C68",
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "invalid_value",
        "tool_choice",
    ),
    ("C68", {"tool_choice": "required"}, "invalid_value", "tool_choice"),
    *(
        ("C68", {"tools": [TOOL], "tool_choice": c, FORMAT: JSON}, "invalid_value", "tool_choice")
        for c in ({}, [], {"type": "function", "name": "f"})
    ),
    *(("C70", {f: 1}, "unknown_parameter", f) for f in ("echo", "best_of", "suffix")),
    ("--", {"use_beam_search": True, "top_k": 3}, "unsupported_value", "top_k"),
    ("--", {"length_penalty": 2.0}, "invalid_value", "length_penalty"),
]

OUTPUTS = "structured_outputs"
LOOP = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}


def _deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def _many(kind: str, count: int) -> dict[str, Any]:
    properties = {f"p{i}": {} for i in range(count)}
    required = list(properties) if kind == "required" else []
    return {"type": "object", "properties": properties, "required": required}


COMPLEX = "grammar_too_complex"
SCHEMAS: list[tuple[str, Any, str | None]] = [
    ("C45", {"type": "stsring"}, None),
    ("C46", {"type": 5}, None),
    ("C46", [], None),
    ("C46", "x", None),
    ("C46", True, None),
    ("C47", {"$ref": "http://127.0.0.1/"}, None),
    ("C47", {"$ref": "file:///etc/passwd"}, None),
    ("C47", {"$ref": "#/$defs/missing"}, None),
    ("C48", {"$ref": "#"}, None),
    ("C48", LOOP, None),
    ("C49", _deep(300), COMPLEX),
    ("C49", _deep(40), COMPLEX),
    ("C49", {"default": _deep(200)}, COMPLEX),
    ("C49", _many("required", 50_000), COMPLEX),
    ("C49", _many("optional", 300), COMPLEX),
    ("C49", {"enum": list(range(100_000))}, COMPLEX),
    ("C49", {"const": "x" * 70_000}, COMPLEX),
    ("C50", {"type": "string", "minLength": 10**9}, COMPLEX),
    ("C50", {"type": "array", "maxItems": 10**9}, COMPLEX),
    ("C50", {"type": "number", "multipleOf": 0}, None),
    ("C50", {"type": "number", "minimum": 2, "maximum": 1}, None),
    ("C51", {"properties": {"a": False}, "required": ["a"], "type": "object"}, None),
    ("C51", {"enum": []}, None),
    ("C51", {"allOf": [{"type": "string"}, {"type": "null"}]}, None),
    *(
        ("F10", {keyword: value}, None)
        for keyword, value in {
            "not": {}, "if": {}, "uniqueItems": True, "contains": {}, "propertyNames": {},
            "dependentRequired": {"a": "b"}, "else": {}, "nullable": True,
            "x-guidance": {}, "$dynamicRef": "#a", "minContains": 1, "zork": 1,
        }.items()
    ),
    ("F10", {"unevaluatedProperties": False, "anyOf": [{"required": ["a"]}]}, None),
    ("F10", {"type": "string", "format": "zork"}, None),
    ("F10", {"oneOf": [{"type": "number"}, {"type": "integer"}]}, None),
    ("F10", {"type": "string", "pattern": "(?=a)b"}, None),
    ("F10", {"type": "string", "pattern": "a{1000}"}, COMPLEX),
]  # fmt: skip

CONSTRAINTS: list[Row] = [
    *(("C53", {OUTPUTS: {"regex": r}}, "invalid_value", f"{OUTPUTS}.regex")
      for r in ("(", "[z-a]", "(?P<", "*\\")),
    *(("C54", {OUTPUTS: {"regex": r}}, COMPLEX, f"{OUTPUTS}.regex")
      for r in ("(.*){1000}", "a{1,100000}", "a" * 1025, "((a{500}){500}){500}", "a?" * 500)),
    *(("C55", {OUTPUTS: {"regex": r}}, "unsupported_value", f"{OUTPUTS}.regex")
      for r in ("(?=a)b", "(?<!a)b", r"(a)\1", r"\bfoo")),
    ("C56", {OUTPUTS: {"grammar": "start: " + "(" * 30_000}}, COMPLEX, f"{OUTPUTS}.grammar"),
    ("C56", {OUTPUTS: {"grammar": "start: " + "(" * 65 + "a"}}, COMPLEX, f"{OUTPUTS}.grammar"),
    ("C56", {OUTPUTS: {"grammar": "start: a"}}, "invalid_value", f"{OUTPUTS}.grammar"),
    ("C56", {OUTPUTS: {"grammar": "root ::= a"}}, "invalid_value", f"{OUTPUTS}.grammar"),
    ("C56", {OUTPUTS: {"grammar": 'root ::= "'}}, "invalid_value", f"{OUTPUTS}.grammar"),
    ("C56", {OUTPUTS: {"grammar": "start: a\na: a"}}, "invalid_value", f"{OUTPUTS}.grammar"),
    ("C56", {OUTPUTS: {"grammar": "start: %json {}"}}, "unsupported_value", f"{OUTPUTS}.grammar"),
    ("C57", {OUTPUTS: {"choice": []}}, "empty_array", f"{OUTPUTS}.choice"),
    ("C57", {OUTPUTS: {"choice": ["a"] * 100_000}}, "array_above_max_length", f"{OUTPUTS}.choice"),
    ("C57", {OUTPUTS: {"choice": ["a", 1]}}, "invalid_type", f"{OUTPUTS}.choice[1]"),
    ("C57", {OUTPUTS: {"choice": [""]}}, "empty_string", f"{OUTPUTS}.choice[0]"),
    ("C58", {OUTPUTS: {"regex": "a", "choice": ["a"]}}, "invalid_value", OUTPUTS),
    ("C58", {OUTPUTS: {"regex": "a"}, "guided_json": {}}, "invalid_value", "guided_json"),
    ("C58", {FORMAT: {"type": "json_object"}, OUTPUTS: {"regex": "a"}}, "invalid_value", OUTPUTS),
    ("--", {OUTPUTS: "regex"}, "invalid_type", OUTPUTS),
    ("--", {OUTPUTS: {}}, "missing_required_parameter", f"{OUTPUTS}.json"),
    ("--", {OUTPUTS: {"backend": "x"}}, "unsupported_value", f"{OUTPUTS}.backend"),
    ("--", {OUTPUTS: {"json": "{"}}, "invalid_value", f"{OUTPUTS}.json"),
    ("--", {OUTPUTS: {"structural_tag": {"triggers": ["<a"]}}}, "missing_required_parameter",
     f"{OUTPUTS}.structural_tag.structures"),
    ("--", {"guided_regex": "("}, "invalid_value", "guided_regex"),
    ("--", {"guided_choice": []}, "empty_array", "guided_choice"),
    ("--", {"guided_grammar": "start: a"}, "invalid_value", "guided_grammar"),
    ("--", {"guided_json": {"type": 5}}, None, "guided_json"),
]  # fmt: skip

PROMPTS: list[Row] = [
    ("P01", {"prompt": ...}, "missing_required_parameter", "prompt"),
    *(("P01", {"prompt": v}, "invalid_type", "prompt") for v in (None, {}, True)),
    ("P02", {"prompt": []}, "empty_array", "prompt"),
    ("P02", {"prompt": [[]]}, "empty_array", "prompt[0]"),
    ("P02", {"prompt": [None]}, "invalid_type", "prompt[0]"),
    ("P02", {"prompt": ["a", 5]}, "invalid_type", "prompt[1]"),
    ("P02", {"prompt": [[1], "a"]}, "invalid_type", "prompt[1]"),
    ("P03", {"prompt": ""}, "empty_string", "prompt"),
    ("P04", {"prompt": [65] * (MAX_LENGTH - 3)}, "context_length_exceeded", "prompt"),
    *(
        ("P05", {"prompt": [v]}, "invalid_value", "prompt[0]")
        for v in (-1, VOCAB, 2**31, 2**63, HUGE)
    ),
    *(("P05", {"prompt": [v]}, "invalid_type", "prompt[0]") for v in (1.5, True)),
    ("P05", {"prompt": [[65], [65, -1]]}, "invalid_value", "prompt[1][1]"),
    ("P06", {"prompt": [MEDIA_PAD]}, "invalid_value", "prompt[0]"),
    ("P07", {"prompt": [65] * 1_000_000}, "context_length_exceeded", "prompt"),
    ("P08", {"prompt": ["x"] * 10_000}, "array_above_max_length", "prompt"),
    ("P08", {"prompt": ["x"] * 128, "n": 128}, "array_above_max_length", "prompt"),
    ("P09", {"logprobs": 6}, "integer_above_max_value", "logprobs"),
    ("P09", {"logprobs": -1}, "integer_below_min_value", "logprobs"),
    ("P09", {"echo": "x"}, "invalid_type", "echo"),
    ("P09", {"suffix": "x"}, "unsupported_parameter", "suffix"),
    *(("P10", {"best_of": v}, "integer_above_max_value", "best_of") for v in (21, 10**9)),
    ("P10", {"best_of": 0, "n": 2}, "invalid_value", "best_of"),
    ("P10", {"best_of": 1, "n": 2}, "invalid_value", "best_of"),
    ("P10", {"best_of": 2, "stream": True}, "invalid_value", "best_of"),
    ("P10", {"best_of": 20, "prompt": ["x"] * 7}, "array_above_max_length", "prompt"),
    ("P11", {"prompt_embeds": "gASVAAAA"}, "field_not_allowed", "prompt_embeds"),
]


def _name(row: Any) -> str:
    return f"{row[0]}-{str(row[3])[:40]}"


def _check(
    here: Site, response: httpx.Response, code: str | None, param: str | None, status: int = 400
) -> None:
    error = error_of(response)
    found = (response.status_code, error["type"], error["code"], error["param"])
    assert found == (status, "invalid_request_error", code, param)
    assert here.chat().status_code == 200


@pytest.mark.parametrize("row", SCALARS, ids=_name)
def test_scalars_of_a_chat(shared_site: Site, row: Row) -> None:
    _, fields, code, param = row
    _check(shared_site, shared_site.chat(**fields), code, param)


@pytest.mark.parametrize("row", MESSAGES, ids=_name)
def test_messages(shared_site: Site, row: Any) -> None:
    _, messages, code, param = row
    _check(shared_site, shared_site.chat(messages=messages), code, param)


@pytest.mark.parametrize("row", EXTENSIONS, ids=_name)
def test_formats_tools_and_extensions(shared_site: Site, row: Row) -> None:
    _, fields, code, param = row
    _check(shared_site, shared_site.chat(**fields), code, param)


@pytest.mark.row("F10.01")
@pytest.mark.parametrize("row", SCHEMAS, ids=lambda row: row[0])
def test_schemas(shared_site: Site, row: Any) -> None:
    _, schema, code = row
    asked = {"type": "json_schema", "json_schema": {"name": "r", "schema": schema}}
    _check(shared_site, shared_site.chat(response_format=asked), code, FORMAT)


@pytest.mark.row("F10.02", "F10.03", "F10.04", "F10.05", "F10.06")
@pytest.mark.parametrize("row", CONSTRAINTS, ids=_name)
def test_constraints(shared_site: Site, row: Row) -> None:
    _, fields, code, param = row
    _check(shared_site, shared_site.chat(**fields), code, param)


@pytest.mark.parametrize(
    "outputs",
    [
        {"regex": "(a+)+b"},
        {"regex": "(x+x+)+y"},
        {"regex": "(a|a|a)*b"},
        {"grammar": 'start: start "a" | "a"'},
        {"grammar": 'root ::= root "a" | "a"'},
    ],
)
def test_what_is_costly_elsewhere_costs_nothing_here(
    shared_site: Site, outputs: dict[str, str]
) -> None:
    """Backtracking and left recursion are no trouble to automata and Earley's algorithm."""
    assert shared_site.chat(structured_outputs=outputs).status_code == 200


@pytest.mark.parametrize("row", PROMPTS, ids=_name)
def test_completions(shared_site: Site, row: Row) -> None:
    _, fields, code, param = row
    _check(shared_site, shared_site.complete(**fields), code, param)


def _raw(text: str) -> bytes:
    """A chat request whose text is broken by hand: `@` stands for the rest of a good one."""
    return text.replace("@", json.dumps(chat())[1:-1]).encode()


BODIES: list[tuple[str, bytes, str | None, str | None]] = [
    ("T03", b"", None, None),
    ("C01", b"{", None, None),
    ("C01", _raw("{@,}"), None, None),
    ("C01", b"{'model': 'tiny'}", None, None),
    ("C01", _raw("{@} {@}"), None, None),
    *(("C02", body, "invalid_type", None) for body in (b"[]", b'"x"', b"null", b"5")),
    ("C03", b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None, None),
    ("C04", _raw("{@}").decode().encode("utf-16"), None, None),
    ("C04", b"\xef\xbb\xbf" + _raw("{@}"), None, None),
    ("C04", '{"model":"é"}'.encode("latin-1"), None, None),
    ("C05", _raw('{"model": "other", @}'), None, "model"),
    ("C08", json.dumps(chat(messages=[{"role": "user", "content": "\ud800"}])).encode(),
     "null_or_invalid_unicode", CONTENT),
    ("C10", _raw('{@, "temperature": NaN}'), None, None),
    ("C11", _raw('{@, "temperature": Infinity}'), "decimal_above_max_value", "temperature"),
    ("C11", _raw('{@, "temperature": -Infinity}'), "decimal_below_min_value", "temperature"),
    ("C11", _raw('{@, "temperature": 1e400}'), "decimal_above_max_value", "temperature"),
    ("C11", _raw('{@, "temperature": 1%s}' % ("0" * 5000)), "decimal_above_max_value",
     "temperature"),
    ("C13", _raw('{@, "logit_bias": {"5": Infinity}}'), "decimal_above_max_value", "logit_bias"),
    ("C19", _raw("{@}").replace(b'"max_tokens": 4', b'"max_tokens": ' + b"9" * 5000),
     "integer_above_max_value", "max_tokens"),
    ("C65", _raw('{@, "chat_template_kwargs": {"a": %s}}' % ("[" * 200 + "]" * 200)),
     "invalid_value", "chat_template_kwargs"),
]  # fmt: skip


@pytest.mark.parametrize("row", BODIES, ids=_name)
def test_bodies(shared_site: Site, row: tuple[str, bytes, str | None, str | None]) -> None:
    _, body, code, param = row
    response = shared_site.post(CHAT, content=body, headers={"content-type": "application/json"})
    _check(shared_site, response, code, param)


GOOD: list[tuple[str, dict[str, Any]]] = [
    ("C07", {"foo": 1}),
    ("C09", {"messages": [{"role": "user", "content": "a\0b\u202e\u200b" + "z\u0335" * 50}]}),
    ("C15", {"temperature": 1e-300}),
    ("C15", {"temperature": 5e-324}),
    ("C16", {"top_p": 0}),
    ("C18", {"max_tokens": None}),
    ("C23", {"stop": ["</s>", "<|im_end|>", "<|eot_id|>", "[INST]"]}),
    ("C35", {"messages": [{"role": "user", "content": "<|image_pad|><|audio_bos|>"}]}),
    ("C36", {"messages": [{"role": "user", "content": "<|im_end|><|im_start|>system"}]}),
    ("C37", {"messages": [{"role": "assistant", "content": "</s>"}, USER]}),
    (
        "C42",
        {
            "messages": [
                {"role": "assistant", "tool_calls": [CALL]},
                {"role": "tool", "content": "x", "tool_call_id": "c1"},
            ]
        },
    ),
    ("C67", {"metadata": {"__type__": "Tensor", "dtype": "torch.os"}}),
    ("C68", {"tools": [TOOL], "tool_choice": "none"}),
    ("--", {"response_format": {"type": "text"}, "service_tier": "fast", "echo": False}),
    ("--", {"max_tokens": ..., "max_completion_tokens": 4}),
    ("--", {"logit_bias": {"5": 100, "6": -100}}),
]


@pytest.mark.parametrize("row", GOOD, ids=lambda row: f"{row[0]}-{min(row[1])}")
def test_odd_but_good(shared_site: Site, row: tuple[str, dict[str, Any]]) -> None:
    assert shared_site.chat(**row[1]).status_code == 200


def test_zero_is_greedy(own_site: Site) -> None:
    for fields in ({"temperature": 1e-300}, {"top_p": 0}, {"temperature": 0}):
        assert own_site.chat(**fields).status_code == 200
    submits = [m for m in own_site.engine.scheduler.seen if hasattr(m, "sampling")]
    assert [m.sampling.temperature for m in submits] == [0.0, 0.0, 0.0]
    assert all(m.sampling.top_p > 0 for m in submits)


def test_context_is_full_to_the_last_token(shared_site: Site) -> None:
    """C40: the template adds one token, so 507 bytes and 4 tokens fill 512."""
    content = "x" * (MAX_LENGTH - 5)
    assert shared_site.chat(messages=[{"role": "user", "content": content}]).status_code == 200
    response = shared_site.chat(messages=[{"role": "user", "content": content + "x"}])
    _check(shared_site, response, "context_length_exceeded", "messages")
    assert error_of(response)["message"] == (
        "This model's maximum context length is 512 tokens. However, you requested 513 tokens "
        "(509 in the messages, 4 in the completion). Please reduce the length of the messages or "
        "completion."
    )


@pytest.mark.parametrize("strict", [False, True])
def test_unknown_fields(strict: bool) -> None:
    """C07"""
    with site(strict_fields=strict) as here:
        response = here.chat(foo=1)
        if strict:
            _check(here, response, "unknown_parameter", "foo")
        else:
            assert response.status_code == 200


def test_unknown_model(shared_site: Site) -> None:
    """C06, C69"""
    for send in (shared_site.chat, shared_site.complete):
        _check(shared_site, send(model="other"), "model_not_found", "model", status=404)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", CHAT, 405, "method_not_supported"),
        ("FOO", CHAT, 405, "method_not_supported"),
        ("TRACE", CHAT, 405, "method_not_supported"),
        ("DELETE", "/v1/models/tiny", 405, "method_not_supported"),
        ("POST", "/health/live", 405, "method_not_supported"),
        ("POST", "/v1/nope", 404, None),
        ("GET", "//v1/models", 404, None),
        ("GET", "/v1/models;a=b", 404, None),
        ("GET", "/v1/%2e%2e/admin", 404, None),
        ("GET", "/v1/models/", 404, "model_not_found"),
        ("POST", "/v1/load_lora_adapter", 404, None),
        ("GET", "/debug", 404, None),
    ],
)
def test_routes(shared_site: Site, method: str, path: str, status: int, code: str | None) -> None:
    """T01, T02, T16, T17, X02, X04, X09"""
    response = shared_site.request(method, path)
    param = "model" if code == "model_not_found" else None
    _check(shared_site, response, code, param, status)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:80"])
def test_foreign_host_names(shared_site: Site, host: str) -> None:
    """T15"""
    response = shared_site.post(CHAT, chat(), headers={"host": host})
    _check(shared_site, response, "misdirected_request", None, 421)


def test_messages_of_the_router(shared_site: Site) -> None:
    assert error_of(shared_site.post("/v1/foo"))["message"] == "Invalid URL (POST /v1/foo)"
    wrong = error_of(shared_site.get(CHAT))["message"]
    assert wrong.startswith("Not allowed to GET on /v1/chat/completions. (HINT: ")
    for path, methods in ((CHAT, "POST"), ("/v1/responses/x", "DELETE, GET"), ("/", "GET, HEAD")):
        assert shared_site.request("PUT", path).headers["allow"] == methods


@pytest.mark.parametrize(
    "header", ["text/plain", "application/xml", "multipart/form-data", "", None]
)
def test_content_types(shared_site: Site, header: str | None) -> None:
    """T07: a page of another site may leave the type away."""
    headers = {} if header is None else {"content-type": header}
    response = shared_site.post(CHAT, content=_raw("{@}"), headers=headers)
    _check(shared_site, response, "unsupported_content_type", None, 415)


@pytest.mark.parametrize(
    "header",
    ["application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json"],
)
def test_json_by_any_name(shared_site: Site, header: str) -> None:
    """T07"""
    headers = {"content-type": header}
    assert shared_site.post(CHAT, content=_raw("{@}"), headers=headers).status_code == 200


def test_content_encoding(shared_site: Site) -> None:
    """T08"""
    response = shared_site.post(CHAT, chat(), headers={"content-encoding": "gzip"})
    _check(shared_site, response, "unsupported_content_type", None, 415)


@pytest.mark.parametrize("declared", [True, False])
def test_body_over_the_cap(declared: bool) -> None:
    """T04, T11, X05: with a length, and in chunks without one."""
    with site(max_body_bytes=2048) as here:
        parts = [b"x" * 1000] * 3

        async def chunks() -> Any:
            for part in parts:
                yield part

        content = b"".join(parts) if declared else chunks()
        headers = {"content-type": "application/json"}
        response = here.post(CHAT, content=content, headers=headers)
        assert response.headers["connection"] == "close"
        _check(here, response, "request_too_large", None, 413)


def test_headers_that_do_not_matter(shared_site: Site) -> None:
    """T21, T22, T23, A16: ranges, foreign ids, image-only clients and internal headers."""
    headers = {
        "range": "bytes=" + ",".join(f"{i}-{i}" for i in range(1000)),
        "x-request-id": "\x1b[31m" + "x" * 10_000,
        "accept": "image/png",
        "x-tenant-id": "other",
        "x-prefiller-host": "evil",
        "x-kv-transfer": "1",
    }
    response = shared_site.post(CHAT, chat(), headers=headers)
    assert response.status_code == 200
    assert "x" * 100 not in response.headers["x-request-id"]


def test_models(shared_site: Site) -> None:
    """X01"""
    for name in ("unknown", "%2e%2e", "x" * 10_000, "a%00b", "%ff"):
        response = shared_site.get(f"/v1/models/{name}")
        _check(shared_site, response, "model_not_found", "model", 404)


TOKENIZE: list[tuple[str, str, dict[str, Any], str | None, str | None]] = [
    ("X05", "/tokenize", {"prompt": "x" * 2**21}, "request_too_large", "prompt"),
    ("X05", "/tokenize", {"messages": [USER] * 100_000}, "array_above_max_length", "messages"),
    ("X06", "/detokenize", {"tokens": [-1]}, "invalid_value", "tokens[0]"),
    ("X06", "/detokenize", {"tokens": [2**63]}, "invalid_value", "tokens[0]"),
    ("X06", "/detokenize", {"tokens": [65] * 1_000_001}, "array_above_max_length", "tokens"),
    ("X06", "/detokenize", {"tokens": "x"}, "invalid_type", "tokens"),
    ("X06", "/detokenize", {"tokens": ["x"]}, "invalid_type", "tokens[0]"),
    ("X06", "/detokenize", {}, "missing_required_parameter", "tokens"),
    ("X08", "/tokenize", {"prompt": "x", "chat_template": "x"}, "field_not_allowed",
     "chat_template"),
    ("X08", "/tokenize", {"messages": [USER], "chat_template_kwargs": {"tokenize": 1}},
     "field_not_allowed", "chat_template_kwargs.tokenize"),
    ("X08", "/tokenize", {"prompt": "x", "mm_processor_kwargs": {}}, "field_not_allowed",
     "mm_processor_kwargs"),
    ("--", "/tokenize", {}, "missing_required_parameter", "prompt"),
    ("--", "/tokenize", {"prompt": "x", "messages": [USER]}, "invalid_value", "prompt"),
]  # fmt: skip


@pytest.mark.parametrize("row", TOKENIZE, ids=lambda row: f"{row[0]}-{row[3]}-{row[4]}")
def test_tokenize_and_detokenize(shared_site: Site, row: Any) -> None:
    _, path, body, code, param = row
    _check(shared_site, shared_site.post(path, body), code, param)


def test_detokenize_what_is_not_utf8(shared_site: Site) -> None:
    """X07"""
    response = shared_site.post("/detokenize", {"tokens": [104, 0xFF, 105]})
    assert response.json() == {"prompt": "h\ufffdi"}


def test_nothing_to_generate(shared_site: Site) -> None:
    """P13"""
    echoed = shared_site.complete(max_tokens=0, echo=True)
    assert echoed.status_code == 200
    assert echoed.json()["choices"][0]["text"] == "hi"
    assert echoed.json()["usage"]["completion_tokens"] == 0
    empty = shared_site.complete(max_tokens=0).json()
    assert empty["choices"][0] | {"text": "", "finish_reason": "length"} == empty["choices"][0]


SECRETS = {"sk-alice-0123": "alice", "sk-bob-012345": "bob"}


def _keys(path: Path, **limits: Any) -> Path:
    """Alice has what the test says, Bob may use another model only."""
    lines = [f"{name} = {value}" for name, value in limits.items()]
    first = ["[[key]]", 'name = "alice"', 'key = "sk-alice-0123"', *lines]
    second = ["[[key]]", 'name = "bob"', 'key = "sk-bob-012345"', 'models = ["other"]']
    path.write_text("\n".join([*first, *second]))
    return path


def _ask(here: Site, key: str, path: str = CHAT, **fields: Any) -> httpx.Response:
    return here.post(path, chat(**fields), headers={"authorization": f"Bearer {key}"})


ALICE, BOB = SECRETS


def test_model_of_another_key(tmp_path: Path) -> None:
    """A09"""
    with site(api_key_file=_keys(tmp_path / "keys")) as here:
        assert _ask(here, ALICE).status_code == 200
        for model in (MODEL, "other"):
            error = error_of(response := _ask(here, BOB, model=model))
            assert (response.status_code, error["code"]) == (404, "model_not_found")
            assert error["param"] == "model"
        bob = {"authorization": f"Bearer {BOB}"}
        asked = {
            "/v1/completions": {"model": MODEL, "prompt": "hi"},
            "/tokenize": {"prompt": "hi"},
            "/detokenize": {"tokens": [65]},
        }
        for path, body in asked.items():
            assert here.post(path, body, headers=bob).status_code == 404
        assert here.get(f"/v1/models/{MODEL}", headers=bob).status_code == 404
        assert here.get("/v1/models", headers=bob).json()["data"] == []


@pytest.mark.parametrize(
    ("row", "limits", "fields", "after", "kind", "code"),
    [
        ("A12", {"requests_per_minute": 60}, {}, 60, "requests", "rate_limit_exceeded"),
        ("A13", {"tokens_per_minute": 30}, {}, 4, "tokens", "rate_limit_exceeded"),
        ("A14", {"concurrent_choices": 2}, {"n": 3}, 0, "requests", "rate_limit_exceeded"),
        ("A15", {"tokens_per_month": 30}, {}, 4, "insufficient_quota", "insufficient_quota"),
        ("C21", {"concurrent_choices": 1}, {"n": 128}, 0, "requests", "rate_limit_exceeded"),
    ],
    ids=lambda value: value if isinstance(value, str) and value[1:].isdigit() else "",
)
def test_limits(
    tmp_path: Path, row: str, limits: Any, fields: Any, after: int, kind: str, code: str
) -> None:
    """A chat has 3 prompt and 4 completion tokens here, so the fifth finds 30 of 30 gone."""
    with site(api_key_file=_keys(tmp_path / "keys", **limits)) as here:
        for _ in range(after):
            assert _ask(here, ALICE).status_code == 200
        response = _ask(here, ALICE, **fields)
        error = error_of(response)
        assert (response.status_code, error["type"], error["code"]) == (429, kind, code)
        assert error["param"] is None
        final = code == "insufficient_quota"
        assert ("retry-after" in response.headers) != final
        assert response.headers.get("x-should-retry") == ("false" if final else None)
        assert not here.engine.scheduler.live
        if row == "C21":
            assert _ask(here, ALICE).status_code == 200


def test_rate_limit_headers(tmp_path: Path) -> None:
    """I7: monotone, and on errors too."""
    limits = {"requests_per_minute": 5, "tokens_per_minute": 1000}
    with site(api_key_file=_keys(tmp_path / "keys", **limits)) as here:
        left = []
        for fields in ({}, {"stream": True}, {"temperature": 9}, {}):
            headers = _ask(here, ALICE, **fields).headers
            assert headers["x-ratelimit-limit-requests"] == "5"
            left.append(int(headers["x-ratelimit-remaining-requests"]))
            assert headers["x-ratelimit-reset-requests"].endswith("s")
        assert left == [4, 3, 2, 1]
        assert int(_ask(here, ALICE).headers["x-ratelimit-remaining-tokens"]) < 1000 - 4 * 4


def test_more_schemas_than_are_remembered(own_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """C52, in a small cache: what is remembered of them stays bounded."""
    monkeypatch.setattr(validator, "_REMEMBERED", 16)
    known = own_site.engine._compiler._verdicts
    for i in range(24):
        schema = {"type": "object", "properties": {f"p{i}": {"type": "integer"}}}
        asked = {"type": "json_schema", "json_schema": {"name": "r", "schema": schema}}
        assert own_site.chat(response_format=asked, max_tokens=1).status_code == 200
        assert len(known) == min(i + 1, 16)


def test_no_model_is_for_chats_alone(shared_site: Site) -> None:
    """P12: a model with a chat template continues plain text as well."""
    assert shared_site.complete().status_code == 200
