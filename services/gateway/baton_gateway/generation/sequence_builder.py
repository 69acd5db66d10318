"""Creates the sequences of a request: one per choice, `n` per prompt."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from baton.output_parsing import Start
from baton.protocol import Pooling
from baton_gateway.catalogue import ModelInfo
from baton_gateway.generation.admission import clamp_max_tokens, sampling_of
from baton_gateway.generation.output_queue import OutputQueue
from baton_gateway.generation.request import EncodedPrompt, GenerationRequest
from baton_gateway.generation.sequence import Sequence
from baton_gateway.output_formats import ToolOptions


class SequenceBuilder:
    """Creates the sequences of one request, the choices of a prompt one after the other."""

    def __init__(
        self,
        request: GenerationRequest,
        model_info: ModelInfo,
        stream: OutputQueue,
        arrival_time: float,
        handle: Callable[[], int],
    ) -> None:
        """
        Args:
            arrival_time: monotonic time of the request's arrival.
            handle: returns a handle that no live sequence has.
        """
        self._request, self._model_info, self._stream = request, model_info, stream
        self._arrival_time, self._handle = arrival_time, handle

    def build(self, prompts: list[EncodedPrompt]) -> list[Sequence]:
        """Create the sequences. Raises `InvalidRequest` if a prompt leaves no room for output."""
        request, model_info, n = self._request, self._model_info, self._request.sampling.n
        rooms = [
            # Embedded images have one length, and the limit for text does not apply.
            0 if request.pooling and prompt.media else _room(request, prompt, model_info)
            for prompt in prompts
        ]
        sequences = [
            self._sequence(prompt, number * n + choice, room)
            for number, (prompt, room) in enumerate(zip(prompts, rooms, strict=True))
            for choice in range(n)
        ]
        if request.tools is not None:
            self._add_parsers(sequences, request.tools, starts(request.tools, prompts, model_info))
        for sequence, prior in zip(sequences, request.prior_outputs, strict=False):
            sequence.resume_after(prior)
        return sequences

    def _sequence(self, prompt: EncodedPrompt, number: int, room: int) -> Sequence:
        """Choice `number` among those of all prompts, with at most `room` tokens."""
        request, model_info = self._request, self._model_info
        identity, text, limits = request.identity, request.text, request.limits
        limit = limits.deadline_ms / 1000
        return Sequence(
            handle=self._handle(),
            request=identity.id,
            model=model_info.model,
            adapter=model_info.adapter,
            tokenizer=model_info.tokenizer,
            choice=number,
            prompt=prompt.ids,
            sampling=sampling_of(request, number % request.sampling.n, room, model_info),
            stream=self._stream,
            priority=limits.priority,
            tenant=identity.tenant,
            salt=identity.salt,
            notes=request.sinks.admission_headers,
            stops=text.stops,
            stop_token_ids=request.sampling.params.stop_ids,
            include_stop=text.include_stop,
            skip_special=text.skip_special and not _reads(request, model_info),
            trace=identity.trace,
            deadline=self._arrival_time + limit if limit else None,
            timeline=request.sinks.timeline,
            pooling=_pooling(request, prompt),
            media=prompt.media,
            prediction=request.prediction,
        )

    def _add_parsers(
        self, sequences: list[Sequence], tools: ToolOptions, begins: tuple[Start, ...]
    ) -> None:
        """Set where the output of each sequence begins, and a parser that starts there."""
        request = self._request
        for sequence in sequences:
            start = sequence.start = begins[sequence.choice // request.sampling.n]
            seed = f"{request.identity.id}-{sequence.choice}"
            sequence.parser = self._model_info.formats.parser(tools, start, seed)


def _pooling(request: GenerationRequest, prompt: EncodedPrompt) -> Pooling | None:
    """What becomes a vector, with what the prompt's encoding says of it."""
    if request.pooling is None:
        return None
    second, num_states = prompt.second, prompt.num_states
    return structs.replace(request.pooling, second=second, num_states=num_states)


def _room(request: GenerationRequest, prompt: EncodedPrompt, model_info: ModelInfo) -> int:
    """Maximum tokens after a prompt: limited by the model's length, and by media added to every
    token."""
    most = clamp_max_tokens(request, prompt.ids, model_info)
    ends = [item.start + item.length for item in prompt.media if item.alongside]
    return min([most, *(end - len(prompt.ids) for end in ends)])


def _reads(request: GenerationRequest, model_info: ModelInfo) -> bool:
    """Whether the output is parsed. If so, special tokens are kept: its delimiters may be
    special."""
    options = request.tools
    return options is not None and (
        options.choice != "none" or model_info.formats.reasoning is not None
    )


def starts(
    options: ToolOptions, prompts: list[EncodedPrompt], model_info: ModelInfo
) -> tuple[Start, ...]:
    """Return the part in which the output of each prompt begins."""
    return options.starts or tuple(
        model_info.formats.start(prompt.tail, options) for prompt in prompts
    )
