"""Default adapters of requests with media."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from baton.errors import InvalidRequest
from baton_gateway.catalogue import Catalogue
from baton_gateway.generation.request import ChatPrompt, GenerationRequest, PairPrompt


def with_media_adapter(
    request: GenerationRequest, adapters: Mapping[str, str], catalogue: Catalogue
) -> GenerationRequest:
    """Return the request with the adapter of its media as its model, if it names the adapter's base
    model or none.

    Raises:
        InvalidRequest: the request has media of several adapters.
    """
    if not adapters or request.model not in (None, *catalogue.models):
        return request
    names = {adapters[kind] for kind in _modalities(request) if kind in adapters}
    if len(names) > 1:
        raise InvalidRequest(
            f"The media of this request have several adapters: {', '.join(sorted(names))}. Name "
            "one of them as `model`.",
            code="unsupported_value",
            param="model",
        )
    parent = request.model or (catalogue.models[0] if len(catalogue.models) == 1 else None)
    for name in names:
        entry = catalogue.get(name)
        if entry is None or entry.parent == parent:
            return replace(request, model=name)
    return request


def _modalities(request: GenerationRequest) -> set[str]:
    with_media = (p for p in request.prompts if isinstance(p, ChatPrompt | PairPrompt))
    modalities = (item.modality for prompt in with_media for item in prompt.media)
    return {modality.removesuffix("_embeds") for modality in modalities}
