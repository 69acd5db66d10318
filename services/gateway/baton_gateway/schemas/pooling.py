"""Requests of OpenAI's embeddings API and of the vLLM, Jina and Cohere scoring APIs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from baton_gateway.generation.pair_prompt import Content
from baton_gateway.http.errors import (
    array_too_long,
    empty_array,
    invalid,
    missing,
    wrong_type,
)
from baton_gateway.schemas.base import Request
from baton_gateway.schemas.fields import INT32, ModelName, TemplateKwargs
from baton_gateway.schemas.pooled_content import (
    Embeddable,
    check_content,
    check_document,
    check_embeddable,
    check_text,
)

Input = tuple[str | tuple[int, ...], ...]
"""A tuple of inputs, each text or token ids."""
InputField = str | list[str] | list[int] | list[list[int]]
"""JSON types of `input`."""
JsonContent = str | dict[str, Any]
TextField = JsonContent | list[JsonContent]
Messages = list[dict[str, Any]]
MAX_TEXTS = 65_536
"""Most texts that are parsed; the settings impose a lower limit."""
MAX_DIMENSIONS = INT32


def _ids(value: object, param: str) -> tuple[int, ...]:
    """Validate a list of integers. Admission compares them with the vocabulary."""
    if not isinstance(value, list):
        raise wrong_type(param, "an array of integers", value)
    for i, token in enumerate(value):
        if type(token) is not int:
            raise wrong_type(f"{param}[{i}]", "an integer", token)
    return tuple(value)


def _many(value: object, param: str) -> list[Any]:
    """Validate that a list is neither empty nor too long."""
    if not isinstance(value, list):
        raise wrong_type(param, "an array", value)
    if not value:
        raise empty_array(param)
    return value


def _check_number(number: int, param: str) -> None:
    if number > MAX_TEXTS:
        raise array_too_long(param, MAX_TEXTS)


def _input(value: object) -> Input:
    """Validate a text, a list of texts, ids, or a list of id lists."""
    if isinstance(value, str):
        return (check_text(value, "input"),)
    if not isinstance(value, list):
        raise wrong_type("input", "a string or an array", value)
    values = _many(value, "input")
    kind = type(values[0])
    if kind not in (str, list):
        return (_ids(values, "input"),)
    _check_number(len(values), "input")
    for i, item in enumerate(values):
        if type(item) is not kind:
            raise wrong_type(f"input[{i}]", "the same type as the first element", item)
    if kind is str:
        return tuple(check_text(item, f"input[{i}]") for i, item in enumerate(values))
    return tuple(_ids(_many(v, f"input[{i}]"), f"input[{i}]") for i, v in enumerate(values))


def _contents(param: str, value: object) -> tuple[Content, ...]:
    """Validate a text or content, or a list of these."""
    if isinstance(value, str | dict):
        return (check_content(value, param),)
    values = _many(value, param)
    _check_number(len(values), param)
    return tuple(check_content(item, f"{param}[{i}]") for i, item in enumerate(values))


def _documents(value: object) -> tuple[Content, ...]:
    """Validate a list of documents."""
    values = _many(value, "documents")
    _check_number(len(values), "documents")
    return tuple(check_document(item, f"documents[{i}]") for i, item in enumerate(values))


def _query(value: object) -> Content:
    return check_content(value, "query")


class PooledRequest(Request):
    """Base of the pooling requests. `model` is optional."""

    model: ModelName | None = None
    user: str | None = Field(default=None, max_length=1024)
    priority: int = Field(default=0, ge=-INT32 - 1, le=INT32)
    use_activation: bool | None = None
    activation: bool | None = None
    """Older name of `use_activation`: false skips the final activation."""
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1, le=INT32)
    """Tokens of each prompt to keep, from its beginning; -1 keeps what the model can take."""
    truncation_side: Literal["right"] = "right"
    """Prompts are cut at their end (vLLM)."""
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    """Only requests with the same salt share cached prefixes (vLLM)."""

    @classmethod
    def _not_null(cls) -> frozenset[str]:
        return frozenset({"model", "input", "query", "documents", "text_1", "text_2"})

    @classmethod
    def _special(cls) -> frozenset[str]:
        return frozenset({"truncate_prompt_tokens", "truncation_side"})

    @property
    def raw(self) -> bool:
        """True if outputs are returned without the final activation."""
        return (self.activation if self.use_activation is None else self.use_activation) is False


class TokenizedRequest(PooledRequest):
    """Base of the requests whose texts are encoded alone."""

    add_special_tokens: bool = True
    """Whether the tokenizer puts special tokens around a text (vLLM)."""

    @classmethod
    def _special(cls) -> frozenset[str]:
        return super()._special() | {"add_special_tokens"}


class VectorRequest(TokenizedRequest):
    """Fields common to /v1/embeddings and /pooling: texts or, in vLLM's format, messages."""

    input: Annotated[
        Input | None, BeforeValidator(_input, json_schema_input_type=InputField | None)
    ] = None
    messages: Annotated[
        Embeddable | None,
        PlainValidator(check_embeddable, json_schema_input_type=Messages | None),
    ] = None
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    chat_template_kwargs: TemplateKwargs = {}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.input is None and self.messages is None:
            raise missing("input")
        if self.input is not None and self.messages is not None:
            raise invalid("input", "Send either 'input' or 'messages', not both.")
        return self

    @property
    def param(self) -> str:
        """Name of the field that contains the input."""
        return "input" if self.messages is None else "messages"


class EmbeddingRequest(VectorRequest):
    """POST /v1/embeddings"""

    model: ModelName
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1, le=MAX_DIMENSIONS)
    normalize: bool = True

    @property
    def raw(self) -> bool:
        """True if vectors are returned without normalisation."""
        return super().raw or not self.normalize


class PoolingRequest(VectorRequest):
    """POST /pooling"""

    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1, le=MAX_DIMENSIONS)


class ClassifyRequest(TokenizedRequest):
    """POST /classify"""

    input: Annotated[Input, BeforeValidator(_input, json_schema_input_type=InputField)]


class PairedRequest(PooledRequest):
    """Base of the requests that compare documents."""

    @classmethod
    def _special(cls) -> frozenset[str]:
        return super()._special() | {"documents"}


class ScoreRequest(PairedRequest):
    """POST /score: one query against each of several documents, or two lists pairwise. Each is a
    string, or in vLLM's format `{"content": [...]}` with parts of text and images."""

    text_1: Annotated[
        tuple[Content, ...],
        PlainValidator(lambda v: _contents("text_1", v), json_schema_input_type=TextField),
    ]
    text_2: Annotated[
        tuple[Content, ...],
        PlainValidator(lambda v: _contents("text_2", v), json_schema_input_type=TextField),
    ]

    @model_validator(mode="before")
    @classmethod
    def _other_names(cls, value: Any) -> Any:
        """Accept vLLM's newer names of the two fields."""
        names = {"queries": "text_1", "documents": "text_2"}
        return {names.get(k, k) if names.get(k) not in value else k: v for k, v in value.items()}

    @model_validator(mode="after")
    def _check(self) -> Self:
        first, second = len(self.text_1), len(self.text_2)
        if first not in (1, second):
            raise invalid(
                "text_2",
                f"Invalid 'text_2': {second} texts cannot be paired with the {first} of 'text_1'. "
                "Send as many, or one 'text_1'.",
            )
        return self

    @property
    def pairs(self) -> tuple[tuple[Content, Content], ...]:
        """The queries and documents to compare."""
        first = self.text_1 * (len(self.text_2) if len(self.text_1) == 1 else 1)
        return tuple(zip(first, self.text_2, strict=True))


class RerankRequest(PairedRequest):
    """POST /rerank"""

    query: Annotated[Content, PlainValidator(_query, json_schema_input_type=JsonContent)]
    documents: Annotated[
        tuple[Content, ...],
        PlainValidator(_documents, json_schema_input_type=list[JsonContent]),
    ]
    top_n: int | None = Field(default=None, ge=1, le=INT32)
    return_documents: bool = True
