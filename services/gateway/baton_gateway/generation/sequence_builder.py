"""Creates the sequences of a request: one per choice, `n` per prompt."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from baton.output_parsing import Start
from baton_gateway.catalogue import ModelInfo
from baton_gateway.generation.admission import clamp_max_tokens, sampling_of
from baton_gateway.generation.output_queue import OutputQueue
from baton_gateway.generation.request import EncodedPrompt, GenerationRequest
from baton_gateway.generation.sequence import Sequence
from baton_gateway.output_formats import ToolOptions


def build_sequences(
    request: GenerationRequest,
    prompts: list[EncodedPrompt],
    facts: ModelInfo,
    stream: OutputQueue,
    arrival_time: float,
    handle: Callable[[], int],
) -> list[Sequence]:
    """Create the sequences of a request, the choices of a prompt one after the other.

    Args:
        arrival_time: monotonic time of the request's arrival.
        handle: returns a handle that no live sequence has.

    Raises `InvalidRequest` if a prompt leaves no room for output.
    """
    rooms = [
        # Embedded images have one length, and the limit for text does not apply.
        0 if request.pooling and prompt.media else _room(request, prompt, facts)
        for prompt in prompts
    ]
    n = request.sampling.n
    sequences = [
        _sequence(request, prompt, facts, stream, arrival_time, handle(), number * n + choice, room)
        for number, (prompt, room) in enumerate(zip(prompts, rooms, strict=True))
        for choice in range(n)
    ]
    if request.tools is not None:
        _add_parsers(
            sequences, request, request.tools, starts(request.tools, prompts, facts), facts
        )
    for sequence, prior in zip(sequences, request.prior_outputs, strict=False):
        sequence.resume_after(prior)
    return sequences


def _sequence(
    request: GenerationRequest,
    prompt: EncodedPrompt,
    facts: ModelInfo,
    stream: OutputQueue,
    arrival_time: float,
    handle: int,
    number: int,
    room: int,
) -> Sequence:
    """Choice `number` among those of all prompts, with at most `room` tokens."""
    identity, text, limits = request.identity, request.text, request.limits
    limit = limits.deadline_ms / 1000
    return Sequence(
        handle=handle,
        request=identity.id,
        model=facts.model,
        adapter=facts.adapter,
        tokenizer=facts.tokenizer,
        choice=number,
        prompt=prompt.ids,
        sampling=sampling_of(request, number % request.sampling.n, room, facts),
        stream=stream,
        priority=limits.priority,
        tenant=identity.tenant,
        salt=identity.salt,
        notes=request.sinks.admission_headers,
        stops=text.stops,
        stop_token_ids=request.sampling.params.stop_ids,
        include_stop=text.include_stop,
        skip_special=text.skip_special and not _reads(request, facts),
        trace=identity.trace,
        deadline=arrival_time + limit if limit else None,
        timeline=request.sinks.timeline,
        pooling=request.pooling
        and structs.replace(request.pooling, second=prompt.second, num_states=prompt.num_states),
        media=prompt.media,
        prediction=request.prediction,
    )


def _add_parsers(
    sequences: list[Sequence],
    request: GenerationRequest,
    tools: ToolOptions,
    begins: tuple[Start, ...],
    facts: ModelInfo,
) -> None:
    """Set where the output of each sequence begins, and a parser that starts there."""
    for sequence in sequences:
        start = sequence.start = begins[sequence.choice // request.sampling.n]
        seed = f"{request.identity.id}-{sequence.choice}"
        sequence.parser = facts.formats.parser(tools, start, seed)


def _room(request: GenerationRequest, prompt: EncodedPrompt, facts: ModelInfo) -> int:
    """Maximum tokens after a prompt: limited by the model's length, and by media added to every
    token."""
    most = clamp_max_tokens(request, prompt.ids, facts)
    ends = [item.start + item.length for item in prompt.media if item.alongside]
    return min([most, *(end - len(prompt.ids) for end in ends)])


def _reads(request: GenerationRequest, facts: ModelInfo) -> bool:
    """Whether the output is parsed. If so, special tokens are kept: its delimiters may be
    special."""
    options = request.tools
    return options is not None and (options.choice != "none" or facts.formats.reasoning is not None)


def starts(
    options: ToolOptions, prompts: list[EncodedPrompt], facts: ModelInfo
) -> tuple[Start, ...]:
    """Return the part in which the output of each prompt begins."""
    return options.starts or tuple(facts.formats.start(prompt.tail, options) for prompt in prompts)
