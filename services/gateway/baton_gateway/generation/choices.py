"""The choices of a request: one sequence for each, `n` per prompt."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from baton_gateway.catalogue import ModelInfo
from baton_gateway.generation.admission import clamp_max_tokens, sampling_of
from baton_gateway.generation.output_queue import OutputQueue
from baton_gateway.generation.request import EncodedPrompt, GenerationRequest
from baton_gateway.generation.sequence import Sequence


def choices(
    request: GenerationRequest,
    prompts: list[EncodedPrompt],
    facts: ModelInfo,
    stream: OutputQueue,
    began: float,
    handle: Callable[[], int],
) -> list[Sequence]:
    """Create the sequences of a request, the choices of a prompt one after the other.

    Args:
        began: monotonic time of the request's arrival.
        handle: returns a handle that no live sequence has.

    Raises `InvalidRequest` if a prompt leaves no room for output.
    """
    # Images all have one length, so the limit for text does not apply.
    rooms = [0 if one.media else clamp_max_tokens(request, one.ids, facts) for one in prompts]
    limit = request.deadline_ms / 1000
    sequences = [
        Sequence(
            handle=handle(),
            request=request.id,
            model=facts.model,
            tokenizer=facts.tokenizer,
            choice=number * request.n + choice,
            prompt=one.ids,
            sampling=sampling_of(request, choice, room, facts),
            stream=stream,
            priority=request.priority,
            tenant=request.tenant,
            salt=request.salt,
            notes=request.admission_notes,
            stops=request.stops,
            stop_token_ids=request.sampling.stop_ids,
            include_stop=request.include_stop,
            skip_special=request.skip_special,
            trace=request.trace,
            deadline=began + limit if limit else None,
            account=request.timeline,
            pooling=request.pooling and structs.replace(request.pooling, second=one.second),
            media=one.media,
        )
        for number, (one, room) in enumerate(zip(prompts, rooms, strict=True))
        for choice in range(request.n)
    ]
    for sequence, past in zip(sequences, request.prior_outputs, strict=False):
        sequence.follow(past)
    return sequences
