"""Request and response of Cohere's embed API.

https://docs.cohere.com/reference/embed
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import msgspec
from pydantic import Field, PlainValidator, model_validator

from baton.protocol import MediaItem
from baton_gateway.generation.pair_prompt import Content
from baton_gateway.http.errors import empty_array, invalid, missing
from baton_gateway.schemas.field_access import array_of
from baton_gateway.schemas.fields import INT32
from baton_gateway.schemas.pooled_content import check_content, check_text
from baton_gateway.schemas.pooling import MAX_DIMENSIONS, PooledRequest
from baton_gateway.schemas.pooling_responses import ApiVersion
from baton_gateway.schemas.unsupported import unsupported

InputType = Literal["search_document", "search_query", "classification", "clustering", "image"]
EmbeddingType = Literal["float", "base64", "binary", "ubinary"]
_SOURCES = ("texts", "images", "inputs")
_PROMPTS: dict[InputType, tuple[str, ...]] = {
    "search_document": ("search_document", "document", "passage"),
    "search_query": ("search_query", "query"),
    "classification": ("classification",),
    "clustering": ("clustering",),
    "image": (),
}
"""Task -> names of its prompt in published models."""


def _texts(value: object) -> tuple[Content, ...]:
    texts = enumerate(array_of(value, "texts"))
    return tuple(check_text(text, f"texts[{i}]") for i, text in texts)


def _images(value: object) -> tuple[MediaItem, ...]:
    urls = enumerate(array_of(value, "images"))
    return tuple(_image(url, f"images[{i}]") for i, url in urls)


def _image(url: object, param: str) -> MediaItem:
    text = check_text(url, param)
    if not text.isascii():
        raise invalid(param, f"Invalid '{param}': expected a URL.", "invalid_image_url")
    return MediaItem("image", text, param)


def _inputs(value: object) -> tuple[Content, ...]:
    inputs = enumerate(array_of(value, "inputs"))
    return tuple(check_content(content, f"inputs[{i}]") for i, content in inputs)


class CohereEmbedRequest(PooledRequest):
    """POST /v2/embed: one of texts, images and inputs. An input is one text or one image."""

    texts: Annotated[
        tuple[Content, ...] | None, PlainValidator(_texts, json_schema_input_type=list[str] | None)
    ] = None
    images: Annotated[
        tuple[MediaItem, ...] | None,
        PlainValidator(_images, json_schema_input_type=list[str] | None),
    ] = None
    inputs: Annotated[
        tuple[Content, ...] | None,
        PlainValidator(_inputs, json_schema_input_type=list[dict[str, Any]] | None),
    ] = None
    input_type: InputType | None = None
    """Task, whose prompt the model reads before each text, if it has one."""
    embedding_types: list[EmbeddingType] = ["float"]
    output_dimension: int | None = Field(default=None, ge=1, le=MAX_DIMENSIONS)
    truncate: Literal["NONE", "START", "END"] = "END"
    """"END" embeds the first tokens of a long text."""
    max_tokens: int | None = Field(default=None, ge=1, le=INT32)
    """Most tokens of a text that are embedded."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = [name for name in _SOURCES if getattr(self, name) is not None]
        if not given:
            raise missing("texts")
        if len(given) > 1:
            raise invalid(given[1], "Send one of 'texts', 'images' and 'inputs'.")
        if not self.embedding_types:
            raise empty_array("embedding_types")
        if self.truncate == "START":
            raise unsupported("truncate", "Send 'END', or the ends of the texts.")
        if self.truncate == "NONE" and self.max_tokens is not None:
            raise invalid("max_tokens", "'max_tokens' needs 'truncate' to be 'END'.")
        return self

    @property
    def param(self) -> str:
        """Name of the field that contains the inputs."""
        return next(name for name in _SOURCES if getattr(self, name) is not None)

    @property
    def contents(self) -> tuple[Content | MediaItem, ...]:
        """The inputs."""
        contents: tuple[Content | MediaItem, ...] = getattr(self, self.param)
        return contents

    @property
    def prompt_names(self) -> tuple[str, ...]:
        """Names under which a model may have the prompt of the task."""
        return () if self.input_type is None else _PROMPTS[self.input_type]


class EmbeddingsByType(msgspec.Struct, omit_defaults=True):
    """The same vectors in each of the requested types."""

    floats: list[list[float]] | None = msgspec.field(default=None, name="float")
    base64: list[str] | None = None
    """float32, little-endian"""
    binary: list[list[int]] | None = None
    """int8: a bit per dimension, set if the number is not negative; the first is the highest."""
    ubinary: list[list[int]] | None = None
    """uint8, with the same bits"""


class BilledUnits(msgspec.Struct):
    """Tokens of the inputs."""

    input_tokens: int


class EmbedMeta(msgspec.Struct):
    """Metadata that Cohere's clients read."""

    billed_units: BilledUnits
    api_version: ApiVersion = msgspec.field(default_factory=ApiVersion)


class CohereEmbeddings(msgspec.Struct):
    """Response of /v2/embed."""

    id: str
    embeddings: EmbeddingsByType
    texts: list[str]
    meta: EmbedMeta
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"
